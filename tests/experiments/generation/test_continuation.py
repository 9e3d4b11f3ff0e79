"""Where prompts come from; text of tokens one at a time: whole characters, and an end before a stop text."""

import io
import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.configuration.schema import GenerateConfig
from experiments.data import TOKENIZERS, DataConfig
from experiments.data.tokenizers import train
from experiments.generation import Continuation, Speed, continue_prompts, read_prompts
from experiments.runs import LoadedRun
from zoo import UserError
from zoo.generate import ENDED
from zoo.tokenization import ByteTokenizer, Tokenizer

TEXT = "Übermut tut selten gut – 数据很多。 " * 9


@pytest.fixture(scope="module", params=sorted({"bytes", "bpe"} & TOKENIZERS.keys()))
def tokenizer(request) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else train([TEXT], 300)


def feed(tokenizer: Tokenizer, ids: list[int], *stop: str, **options) -> tuple[Continuation, list[str]]:
    """The continuation after the tokens up to its end, and what could be shown after each."""
    made, shown = Continuation(tokenizer, stop, **options), []
    for token in ids:
        made.add(token)
        shown.append(made.safe_text)
        if made.ended:
            break
    return made, shown


def test_text_grows_by_whole_characters(tokenizer: Tokenizer):
    made, shown = feed(tokenizer, tokenizer.encode(TEXT))
    assert made.text == TEXT == shown[-1]
    assert all(TEXT.startswith(text) for text in shown)
    assert not made.ended


def test_any_tokens_give_the_text_that_decoding_all_of_them_gives(tokenizer: Tokenizer):
    """Also bytes that are no characters, and separators in between."""
    draw = random.Random(0)
    for _ in range(50):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(40)]
        made, shown = feed(tokenizer, ids)
        assert made.text == tokenizer.decode(ids).rstrip("\ufffd")
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown))


@pytest.mark.parametrize(
    "stop", [["gut"], ["t s"], ["数"], ["–", "gut"], ["never"], ["Ü"], ["nie", "t selten gut –"]]
)
def test_text_ends_before_the_first_stop_text_and_shows_nothing_of_it(tokenizer: Tokenizer, stop: list[str]):
    made, shown = feed(tokenizer, tokenizer.encode(TEXT), *stop)
    places = [TEXT.find(text) for text in stop if text in TEXT]
    assert made.ended == bool(places)
    assert made.text == TEXT[: min(places, default=None)]
    assert all(made.text.startswith(text) for text in shown)
    assert tokenizer.decode(made.tokens).startswith(made.text)


def test_of_stop_texts_that_come_with_one_token_the_first_in_the_text_ends_it():
    """Not the first of the list."""
    tokenizer = train([TEXT], 300)
    (token,) = tokenizer.encode(" selten")
    made, shown = feed(tokenizer, [token], "n", "e", "never")
    assert (made.text, shown, made.ended) == (" s", [" s"], True)


def test_what_may_become_a_stop_text_is_held_back():
    made, shown = feed(ByteTokenizer(), list(b"one\n\nQ: two\n\nA:"), "\n\nA:", "\n\nQ!")
    assert made.text == "one\n\nQ: two"
    assert shown[2:7] == ["one", "one", "one", "one", "one\n\nQ:"]


def test_the_separator_ends_a_text_by_option_or_by_its_name(tokenizer: Tokenizer):
    ids = [*tokenizer.encode("one"), tokenizer.bos_id, *tokenizer.encode("two")]
    assert feed(tokenizer, ids)[0].text == "one<|endoftext|>two"
    for made, shown in (
        feed(tokenizer, ids, stop_at_separator=True),
        feed(tokenizer, ids, "<|endoftext|>"),
    ):
        assert (made.text, shown[-1], made.ended, made.tokens[-1]) == ("one", "one", True, tokenizer.bos_id)


def test_every_option_reaches_the_generator_and_sequences_that_ended_take_nothing_more(monkeypatch):
    """The first text ends at its stop sequence, the second goes on."""
    asked: dict = {}

    def generate(model, prompts, tokens, *, stop, **options):
        asked.update(options, tokens=tokens)
        for step in ([ord("a"), ord("b")], [ord("|"), ord("c")], [ENDED, ord("d")]):
            yield torch.tensor(step)
        asked["ended"] = [stop(b, None) for b in range(2)]

    monkeypatch.setattr("zoo.generate", generate)
    loaded = LoadedRun(None, ByteTokenizer(), Path(), DataConfig())
    given = {"temperature": 0.5, "top_k": 3, "top_p": 0.25, "chunk": 7, "tokens": 9}
    options = GenerateConfig(**given, stop=["|"])
    prompts = [torch.tensor([0, 1]), torch.tensor([0])]
    made = continue_prompts(loaded, prompts, options, 11, Speed(), lambda _: None)
    assert [one.text for one in made] == ["a", "bcd"]
    assert asked == {**given, "seed": 11, "ended": [True, False]}


def read(folder: Path, content: bytes, name: str = "prompts.txt") -> list[str]:
    (folder / name).write_bytes(content)
    return read_prompts(GenerateConfig(file=str(folder / name)))


def test_keys():
    assert read_prompts(GenerateConfig()) == ["The "]
    assert read_prompts(GenerateConfig(prompt="a")) == ["a"]
    assert read_prompts(GenerateConfig(prompt="")) == [""]
    assert read_prompts(GenerateConfig(prompts=["a", "b "])) == ["a", "b "]


def test_a_line_is_a_prompt_as_it_stands(tmp_path: Path):
    assert read(tmp_path, b"one\n two \nthr\xc3\xa9e") == ["one", " two ", "thrée"]
    assert read(tmp_path, b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\r\n") == ["one", "two\u2028still two"]


def test_an_object_is_a_prompt_of_any_text(tmp_path: Path):
    content = b'{"prompt": "one\\ntwo", "more": 1}\n{"prompt": ""}\n'
    assert read(tmp_path, content, "prompts.jsonl") == ["one\ntwo", ""]


def test_the_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    assert read_prompts(GenerateConfig(file="-")) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "prompts.txt is empty"),
        (b"\n \n", "prompts.txt is empty"),
        (b"one\n\ntwo\n", "prompts.txt: line 2 is empty"),
        (b"one\n\n", "line 2 is empty"),
        (b"one \xff", "is not UTF-8 text: byte 4 is 0xff"),
        (b"one\0", "is binary, not text: byte 3 is NUL"),
    ],
)
def test_a_file_without_prompts(tmp_path: Path, content: bytes, says: str):
    with pytest.raises(UserError, match=says):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "line", ["one", "[]", "{}", '{"prompt": 3}', '{"prompt": null}', "", "null", "[" * 100_000]
)
def test_a_line_that_is_no_object_with_a_prompt(tmp_path: Path, line: str):
    with pytest.raises(UserError, match=r'prompts.jsonl: line 2 is not of the form {"prompt": "some text"}'):
        read(tmp_path, b'{"prompt": "one"}\n' + line.encode() + b"\n", "prompts.jsonl")


def test_half_a_character_is_no_text(tmp_path: Path):
    for prompts in ({"prompt": "a\ud800"}, {"prompts": ["a", "\udcff"]}):
        with pytest.raises(UserError, match="half of a character"):
            read_prompts(GenerateConfig(**prompts))
    with pytest.raises(UserError, match="half of a character"):
        read(tmp_path, b'{"prompt": "\\ud800"}', "prompts.jsonl")


def test_places_that_are_no_file(tmp_path: Path):
    with pytest.raises(UserError, match=r"generate.file=/nope: no such file"):
        read_prompts(GenerateConfig(file="/nope"))
    with pytest.raises(UserError, match="is no regular file"):
        read_prompts(GenerateConfig(file=str(tmp_path)))


def test_two_sources_are_one_too_many():
    for config in (GenerateConfig(prompt="a", prompts=["b"]), GenerateConfig(file="x", prompts=["b"])):
        with pytest.raises(UserError, match=r"generate\.prompts.* both given|both given"):
            read_prompts(config)

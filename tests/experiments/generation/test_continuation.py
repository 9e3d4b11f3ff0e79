"""Text of tokens that arrive one at a time: whole characters, and an end before a stop text."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from experiments.configuration.schema import GenerateConfig
from experiments.data import TOKENIZERS, DataConfig
from experiments.data.tokenizers import train
from experiments.generation import Continuation, Speed, continue_prompts
from experiments.runs import LoadedRun
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

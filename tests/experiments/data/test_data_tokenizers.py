"""Tokenizers: round trips, determinism, the separator, cutting of long texts, saving."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from support.sample_text import prose
from tokenizers.pre_tokenizers import ByteLevel

from experiments.data import DataConfig, check, prepare, tokenizer_kinds
from experiments.data.tokenizer_kinds import TOKENIZERS, pieces, train
from zoo.errors import UserError
from zoo.tokenization import SEPARATOR, from_json

ODD = [
    "",
    " ",
    "\n",
    "  two  spaces \n\n\t tab \r\n end ",
    "naïve café — “quotes” … ",
    "e\u0301 combining, \u200b zero width, \u202e right to left, \ufeff mark inside",
    "日本語と中文 한국어 العربية עברית हिन्दी",
    "🏳️‍🌈 👩‍👩‍👧‍👦 \U0001f9ff \U0010ffff",
    "\x00\x01\x1c\x7f\x85\xa0\u2028\u3000",
    f"a text that spells {SEPARATOR} out{SEPARATOR}",
    "don't you're I'll 'tis 3.14e-10 @-@ __init__",
]


def tiny_gpt2(folder) -> str:
    """Tables with the shape of GPT-2's: the byte alphabet, two merges, the separator last."""
    tokens = [*sorted(ByteLevel.alphabet()), "th", "the", SEPARATOR]
    (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\nt h\nth e\n")
    return str(folder)


@pytest.fixture(params=["bytes", "bpe", "gpt2"])
def tokenizer(request, tmp_path):
    if request.param == "bytes":
        return TOKENIZERS["bytes"].make(None, None, "", None)
    if request.param == "bpe":
        return train([prose(50)], 400)
    cfg = DataConfig(tokenizer="gpt2", gpt2_path=tiny_gpt2(tmp_path))
    return TOKENIZERS["gpt2"].make(cfg, None, "", None)


@pytest.mark.parametrize("text", ODD)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_id not in ids
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.decode([tokenizer.bos_id, *ids]) == SEPARATOR + text


def test_a_batch_is_its_texts_one_by_one(tokenizer):
    for text, ids in zip(ODD, tokenizer.encode_batch(ODD), strict=True):
        assert np.asarray(ids).tolist() == tokenizer.encode(text)


def test_saved_and_restored(tokenizer):
    again = from_json(tokenizer.to_json())
    assert again.identity() == tokenizer.identity()
    assert (again.name, again.vocab_size, again.bos_id) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.bos_id,
    )
    assert [again.encode(text) for text in ODD] == [tokenizer.encode(text) for text in ODD]


def test_something_else_is_not_restored():
    for text in ('{"kind": "words"}', "[]"):
        with pytest.raises(ValueError, match="not a tokenizer"):
            from_json(text)


@pytest.mark.parametrize("length", [1, 7, 50])
def test_pieces_do_not_change_the_tokens(tokenizer, length):
    text = prose(5) + "".join(ODD) + " \n = Title = \n \x1c x  y\n\n  z don't" * 5
    cut = list(pieces(text, length))
    assert "".join(cut) == text
    assert len(cut) > 20 or length > 7
    joined = [i for ids in tokenizer.encode_batch(cut) for i in np.asarray(ids).tolist()]
    assert joined == tokenizer.encode(text)


def _trained(threads: int) -> str:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    return train([prose(100, seed) for seed in range(5)], 500).to_json()


def test_training_twice_gives_the_same():
    texts = [prose(100, seed) for seed in range(5)]
    assert train(texts, 500).to_json() == train(texts, 500).to_json()


@pytest.mark.long
def test_training_is_deterministic_whatever_the_threads():
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as one, context.Pool(1) as two:
        assert one.apply(_trained, (1,)) == two.apply(_trained, (2,)) == _trained(2)


def test_bpe_has_the_entries_asked_for_and_compresses():
    text = prose(50) + " ".join(str(i * i) for i in range(500))
    tokenizer = train([text], 400)
    assert tokenizer.vocab_size == 400
    assert tokenizer.name == "bpe-400"
    assert len(tokenizer.encode(prose(10))) < len(prose(10).encode()) / 3
    assert train(["short"], 400).vocab_size < 270


def test_gpt2_names_of_files_do_not_matter(tmp_path):
    (tmp_path / "a").mkdir()
    folder = tmp_path / "b"
    folder.mkdir()
    tiny_gpt2(tmp_path / "a")
    (folder / "vocab.json").write_bytes((tmp_path / "a" / "encoder.json").read_bytes())
    (folder / "merges.txt").write_bytes((tmp_path / "a" / "vocab.bpe").read_bytes())
    specs = [
        TOKENIZERS["gpt2"].spec(DataConfig(tokenizer="gpt2", gpt2_path=str(tmp_path / name))) for name in "ab"
    ]
    assert specs[0] == specs[1]


def test_gpt2_merges_are_applied(config, tmp_path):
    corpus = prepare(config(tokenizer="gpt2", gpt2_path=tiny_gpt2(tmp_path)), progress=False)
    ids = corpus.tokenizer.encode("the")
    assert len(ids) == 1
    assert corpus.describe()["vocab_size"] == 259


def test_gpt2_tables_with_other_merges_make_another_corpus(config, tmp_path):
    """The vocabulary is the same, but not what a word is cut into."""
    cfg = config(tokenizer="gpt2", gpt2_path=tiny_gpt2(tmp_path))
    first = prepare(cfg, progress=False)
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nt h\n")
    second = prepare(cfg, progress=False)
    assert second.fingerprint != first.fingerprint
    assert [len(corpus.tokenizer.encode("the")) for corpus in (first, second)] == [1, 2]
    assert len(second.splits["test"].tokens) > len(first.splits["test"].tokens)


def test_gpt2_merges_of_number_signs_are_no_comments(tmp_path):
    """GPT-2 has tokens ##, #### and longer; without their merges a heading would be other tokens than GPT-2's."""
    tokens = [*sorted(ByteLevel.alphabet()), "##", "####", SEPARATOR]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n# #\n## ##\n")
    cfg = DataConfig(tokenizer="gpt2", gpt2_path=str(tmp_path))
    tokenizer = TOKENIZERS["gpt2"].make(cfg, None, "", None)
    found = [[tokens[i] for i in tokenizer.encode("#" * n)] for n in (1, 2, 3, 4)]
    assert found == [["#"], ["##"], ["##", "#"], ["####"]]


def test_gpt2_merges_of_a_space_are_read(tmp_path):
    """The files are UTF-8, and a space is Ġ in them."""
    tokens = [*sorted(ByteLevel.alphabet()), "Ġt", "Ġth", SEPARATOR]
    vocabulary = json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False)
    (tmp_path / "vocab.json").write_text(vocabulary, encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ t\nĠt h\n", encoding="utf-8")
    cfg = DataConfig(tokenizer="gpt2", gpt2_path=str(tmp_path))
    tokenizer = TOKENIZERS["gpt2"].make(cfg, None, "", None)
    assert [tokens[i] for i in tokenizer.encode(" the")] == ["Ġth", "e"]


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        (None, None, "must be a folder that holds encoder.json and vocab.bpe"),
        ("not json", "", "cannot read GPT-2's tables"),
        ("{}", "", "no GPT-2 vocabulary"),
        ('{"<|endoftext|>": 0}', "#version: 0.2\na b\n", "does not belong to"),
    ],
)
def test_bad_gpt2_folders(config, tmp_path, cache, vocabulary, merges, message):
    folder = tmp_path / "gpt2"
    folder.mkdir()
    if vocabulary is not None:
        (folder / "encoder.json").write_text(vocabulary)
        (folder / "vocab.bpe").write_text(merges)
    with pytest.raises(UserError, match=message):
        check(config(tokenizer="gpt2", gpt2_path=str(folder)))
    assert not cache.exists()


def test_gpt2_without_a_folder_comes_from_the_hub(monkeypatch, tmp_path):
    tiny = Path(tiny_gpt2(tmp_path))
    files = next((tiny / a, tiny / b) for a, b in tokenizer_kinds._GPT2_FILES if (tiny / a).is_file())
    monkeypatch.setattr(tokenizer_kinds, "_gpt2_of_hub", lambda: files)
    of_hub, of_folder = (
        TOKENIZERS["gpt2"].spec(DataConfig(tokenizer="gpt2", gpt2_path=place)) for place in (None, str(tiny))
    )
    assert of_hub == of_folder


def test_files_of_the_hub_that_are_here_are_taken_without_asking_it(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    asked, here = [], True

    def given(repository: str, name: str, local_files_only: bool) -> str:
        asked.append(local_files_only)
        if local_files_only and not here:
            raise OSError("not fetched yet")
        return str(tmp_path / name)

    monkeypatch.setattr(hub, "hf_hub_download", given)
    tokenizer_kinds._gpt2_of_hub()
    assert asked == [True, True]
    here = False
    asked.clear()
    tokenizer_kinds._gpt2_of_hub()
    assert asked == [True, False, False]


def test_the_hub_is_asked_for_the_files_of_gpt2_by_repository_and_name(monkeypatch, tmp_path):
    asked = []
    hub = pytest.importorskip("huggingface_hub")
    given = lambda repository, name, **_: asked.append((repository, name)) or str(tmp_path / name)  # noqa: E731
    monkeypatch.setattr(hub, "hf_hub_download", given)
    files = tokenizer_kinds._gpt2_of_hub()
    assert asked == [(tokenizer_kinds._GPT2_REPOSITORY, name) for name in tokenizer_kinds._GPT2_FILES[1]]
    assert files == tuple(tmp_path / name for name in tokenizer_kinds._GPT2_FILES[1])

"""Tokenizers: round trips, determinism, the separator, cutting of long texts, saving."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.sample_text import prose
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel

from experiments.data import DataConfig, check, fingerprint, prepare, tokenizers
from experiments.data.sources import base
from experiments.data.tokenizers import LONGEST_WORD, PIECE, TOKENIZERS, has_long_words, pieces, train
from experiments.scoring.evaluate import read_splits
from experiments.system import signals
from zoo.errors import UserError
from zoo.tokenization import SEPARATOR, BytePairTokenizer, check_round_trip, from_json

WORDS = ByteLevel(add_prefix_space=False, use_regex=True)

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


def test_saved_and_restored(tokenizer):
    again = from_json(tokenizer.to_json())
    assert again.identity() == tokenizer.identity()
    assert (again.name, again.vocab_size, again.bos_id) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.bos_id,
    )
    assert [again.encode(text) for text in ODD] == [tokenizer.encode(text) for text in ODD]


@pytest.mark.parametrize("length", [1, 7, 50])
def test_pieces_do_not_change_the_tokens(tokenizer, length):
    text = prose(5) + "".join(ODD) + " \n = Title = \n \x1c x  y\n\n  z don't" * 5
    cut = list(pieces(text, length))
    assert "".join(cut) == text
    assert len(cut) > 20 or length > 7
    joined = [i for ids in tokenizer.encode_batch(cut) for i in np.asarray(ids).tolist()]
    assert joined == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("length", "size"), [(700, 9_000), pytest.param(PIECE, 75_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "unit",
    [
        *("ACGT", "日本語", "ข้อความ", "\n", " ", "=", "1", "日本，", "日1²", "a1", "line\n"),
        '{"k":1,"v":[true]},',
        "words " * 500 + "x" * 5_000,
        "x" * LONGEST_WORD + ". " + "y" * (LONGEST_WORD + 2) + ". ",
    ],
    ids=lambda text: text[:6],
)
def test_pieces_are_of_bounded_length_and_make_the_text(unit, length, size):
    """And so are the words in them, which training takes time for with the square of their length."""
    text = unit * (size // len(unit))
    cut = list(pieces(text, length))
    assert "".join(cut) == text
    assert max(map(len, cut)) <= length + 4 * LONGEST_WORD
    words = [piece[a:b] for piece in cut for _, (a, b) in WORDS.pre_tokenize_str(piece)]
    assert max(map(len, words)) <= LONGEST_WORD + 1  # with the blank before
    whole = [text[a:b] for _, (a, b) in WORDS.pre_tokenize_str(text)]
    if max(map(len, whole)) < LONGEST_WORD:
        assert words == whole, "a text without long words is cut between words"
        assert not has_long_words(text)
    elif max(map(len, whole)) > LONGEST_WORD + 1:
        assert has_long_words(text)


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes"])
def test_only_a_text_with_long_words_is_another_corpus_than_before_they_were_cut(
    config, tmp_path, monkeypatch, tokenizer
):
    """Its tokens are others; those of texts without are not, nor bytes."""
    for text, changes in ((prose(50), False), (prose(50) + "x" * 5000, tokenizer == "bpe")):
        (tmp_path / "t.txt").write_text(text, "utf-8")
        cfg = config(path=str(tmp_path / "t.txt"), tokenizer=tokenizer, vocab_size=300)
        now = fingerprint(cfg)
        with monkeypatch.context() as before:
            before.setattr(base, "has_long_words", lambda text: False)
            assert (fingerprint(cfg) != now) == changes


SLOW = """
import signal, sys
from experiments.data import tokenizers

def stop(*_):
    raise SystemExit(7)

signal.signal(signal.SIGTERM, stop)
tokenizers.pieces = lambda text: [text]  # one word, as before words were cut: minutes of work
print("ready", flush=True)
tokenizers.train(["".join(map(str, range(100_000)))], 4096)
"""


@pytest.mark.slow
def test_a_signal_ends_the_training_of_a_tokenizer():
    """Where the library does not come back to Python for long: half a million digits in one word take it minutes."""
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)  # until it trains
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=300) == 7
        finally:
            process.kill()


@pytest.mark.slow
def test_a_process_that_is_told_to_make_room_stops_training_a_tokenizer(monkeypatch):
    monkeypatch.setattr(signals, "_received", [signal.SIGUSR2])
    with pytest.raises(signals.Paused, match="stopped by SIGUSR2 while training a tokenizer"):
        train((prose(5, seed) for seed in range(1_000_000)), 400)


def test_what_goes_wrong_with_a_text_is_said_by_the_training_of_a_tokenizer():
    def texts():
        yield prose(5)
        raise UserError("no text")

    with pytest.raises(UserError, match="no text"):
        train(texts(), 400)


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


ALPHABET = sorted(ByteLevel.alphabet())
WHOLE = [*ALPHABET, "th", "the", SEPARATOR]


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        (
            [SEPARATOR, *"▁abcdefghijklmnopqrstuvwxyz.,"],
            [],
            "cannot encode every text: 22. of the 256 byte symbols",
        ),
        ([symbol for symbol in WHOLE if symbol != "Ġ"], ["t h"], "cannot encode every text: 1 of the .*'Ġ'"),
        ([symbol for symbol in WHOLE if symbol != "Ń"], ["t h"], "cannot encode every text: 1 of the .*'Ń'"),
        (WHOLE, ["t h", "the "], "does not belong to .*it has the merge 'the '"),
        (WHOLE, ["t h", " the"], "does not belong to .*it has the merge ' the'"),
        ([*WHOLE, "xyz"], ["xy z"], "does not belong to .*it has the merge 'xy z'"),
        ([*WHOLE, "<|endoftext", "|>"], ["<|endoftext |>"], "does not belong to .*it has the merge"),
        (dict(zip(WHOLE, range(1, 300))), ["t h"], "must number its 259 tokens from 0 to 258"),  # noqa: B905
        ({symbol: 2 * i for i, symbol in enumerate(WHOLE)}, ["t h"], "must number its 259 tokens"),
        ({symbol: i // 2 for i, symbol in enumerate(WHOLE)}, ["t h"], "must number its 259 tokens"),
        ({symbol: str(i) for i, symbol in enumerate(WHOLE)}, ["t h"], "must number its 259 tokens"),
        ({symbol: i + 0.5 for i, symbol in enumerate(WHOLE)}, ["t h"], "must number its 259 tokens"),
    ],
)
def test_a_vocabulary_that_loses_text_is_refused_before_anything_is_read(
    config, tmp_path, cache, vocabulary, merges, message
):
    table = vocabulary if isinstance(vocabulary, dict) else {symbol: i for i, symbol in enumerate(vocabulary)}
    (tmp_path / "vocab.json").write_text(json.dumps(table))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    cfg = config(tokenizer="gpt2", gpt2_path=str(tmp_path))
    for entry in (check, fingerprint, prepare):
        with pytest.raises(UserError, match=message) as caught:
            entry(cfg)
        assert str(tmp_path / "vocab.json") in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not cache.exists()


def changed(change) -> BytePairTokenizer:
    """A byte-level BPE that does something to a text, as many a tokenizer.json does."""
    saved = json.loads(json.loads(train([prose(50)], 400).to_json())["tokenizer"])
    change(saved)
    return BytePairTokenizer("bpe", Backend.from_str(json.dumps(saved)))


def normalized(**options):
    return lambda saved: saved.update(normalizer=options)


LOSSY = {
    "lower case": normalized(type="Lowercase"),
    "composed": normalized(type="NFC"),
    "decomposed": normalized(type="NFD"),
    "compatible": normalized(type="NFKC"),
    "stripped": normalized(type="Strip", strip_left=True, strip_right=True),
    "stripped at the end": normalized(type="Strip", strip_left=False, strip_right=True),
    "without accents": normalized(type="StripAccents"),
    "of BERT": normalized(
        type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False
    ),
    "replaced": normalized(type="Replace", pattern={"String": "``"}, content='"'),
    "prepended": normalized(type="Prepend", prepend="▁"),
    "a space in front": lambda saved: saved["pre_tokenizer"].update(add_prefix_space=True),
    "split at blanks": lambda saved: saved.update(pre_tokenizer={"type": "Whitespace"}),
    "marks for blanks": lambda saved: saved.update(
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    ),
    "a decoder that cleans": lambda saved: saved.update(
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    ),
    "cut off": lambda saved: saved.update(
        truncation={"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    ),
}


@pytest.mark.parametrize("name", LOSSY)
def test_no_tokenizer_that_changes_text_makes_tokens_to_score(config, tmp_path, cache, monkeypatch, name):
    """Neither of a corpus nor of another text; so bits per byte are never of a text that was not there."""
    lossy = changed(LOSSY[name])
    with pytest.raises(
        UserError, match=r"the tokenizer bpe-\d+ .*; use data.tokenizer=bpe or data.tokenizer=bytes"
    ):
        check_round_trip(lossy)
    monkeypatch.setattr(TOKENIZERS["bpe"], "make", lambda *_: lossy)
    with pytest.raises(UserError, match="the tokenizer bpe-"):
        prepare(config(tokenizer="bpe", vocab_size=400), progress=False)
    assert not list((cache / "corpora").glob("*/meta.json"))
    with pytest.raises(UserError, match="the tokenizer bpe-"):
        list(read_splits(config(), [], lossy))


def test_a_corpus_in_the_cache_whose_tokenizer_loses_text_is_refused(config, cache):
    cfg = config(tokenizer="bpe", vocab_size=400)
    corpus = prepare(cfg, progress=False)
    folder = cache / "corpora" / corpus.fingerprint
    text = changed(LOSSY["lower case"]).to_json()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    meta = json.loads((folder / "meta.json").read_text())
    meta["sha256"]["tokenizer.json"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="does not give back the text"):
        prepare(cfg, progress=False)


def test_gpt2_without_a_folder_comes_from_the_hub(monkeypatch, tmp_path):
    tiny = Path(tiny_gpt2(tmp_path))
    files = next((tiny / a, tiny / b) for a, b in tokenizers._GPT2_FILES if (tiny / a).is_file())
    monkeypatch.setattr(tokenizers, "_gpt2_of_hub", lambda: files)
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
    tokenizers._gpt2_of_hub()
    assert asked == [True, True]
    here = False
    asked.clear()
    tokenizers._gpt2_of_hub()
    assert asked == [True, False, False]


def test_the_hub_is_asked_for_the_files_of_gpt2_by_repository_and_name(monkeypatch, tmp_path):
    asked = []
    hub = pytest.importorskip("huggingface_hub")
    given = lambda repository, name, **_: asked.append((repository, name)) or str(tmp_path / name)  # noqa: E731
    monkeypatch.setattr(hub, "hf_hub_download", given)
    files = tokenizers._gpt2_of_hub()
    assert asked == [(tokenizers._GPT2_REPOSITORY, name) for name in tokenizers._GPT2_FILES[1]]
    assert files == tuple(tmp_path / name for name in tokenizers._GPT2_FILES[1])

"""Split rules, fingerprints and the cache: made once, whole or not at all."""

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.data import fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.sources.base import files_stamp
from experiments.data.sources.pydocs import split_of_name
from experiments.data.sources.text import cut_text, splits_of_digests
from experiments.data.tokenizers import TOKENIZERS


def corpora(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "corpora").iterdir())


def test_fingerprint_covers_what_the_model_sees(config, text_file, tmp_path):
    first = fingerprint(config())
    assert len(first) == 32
    int(first, 16)
    copy = tmp_path / "elsewhere.txt"
    copy.write_bytes(text_file.read_bytes())
    unchanged = [config(path=str(copy)), config(seq_len=16), config(batch_size=2), config(pack="document")]
    assert {fingerprint(cfg) for cfg in unchanged} == {first}
    copy.write_bytes(text_file.read_bytes().replace(b"layer", b"LAYER", 1))
    changed = [config(path=str(copy)), config(tokenizer="bpe", vocab_size=300), config(tokenizer="bpe")]
    assert len({first, *map(fingerprint, changed)}) == 4


def test_fingerprint_covers_the_rule_by_which_text_is_split(config, monkeypatch):
    first = fingerprint(config())
    monkeypatch.setattr(type(SOURCES["text"]), "rule", "another rule")
    assert fingerprint(config()) != first


def test_an_edit_of_equal_length_right_away_is_seen(config, text_file):
    first = fingerprint(config())
    text_file.write_bytes(text_file.read_bytes().replace(b"layer", b"LAYER", 1))
    assert fingerprint(config()) != first


@pytest.mark.slow
def test_a_settled_file_is_not_read_again(config, text_file, cache):
    time.sleep(2.1)  # younger files are always read: their timestamps cannot tell an edit
    first = fingerprint(config())
    memory = next((cache / "contents").iterdir())
    content = json.loads(memory.read_text())
    content["train"]["digest"] = "0"
    memory.write_text(json.dumps(content))
    assert fingerprint(config()) != first
    memory.write_text("damaged")
    assert fingerprint(config()) == first


def test_prepare_again_maps_the_same_tokens(config, cache):
    first = prepare(config(), progress=False)
    folder = cache / "corpora" / first.fingerprint
    times = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    second = prepare(config(seq_len=8), progress=False)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == times
    assert corpora(cache) == [first.fingerprint]
    for split in SPLITS:
        assert np.array_equal(first.splits[split].tokens, second.splits[split].tokens)
        assert isinstance(first.splits[split].tokens, np.memmap)
        assert first.splits[split].tokens.dtype == np.uint16
        assert first.splits[split].tokens[0] == first.tokenizer.bos_id
        assert not first.splits[split].tokens.flags.writeable
    described = second.describe()
    assert described["seq_len"] == 8
    assert described["splits"]["train"]["tokens"] == len(first.splits["train"].tokens)
    json.dumps(described)


def test_bpe_is_trained_on_the_training_split_only(config, text_file, tmp_path, cache):
    first = prepare(config(tokenizer="bpe", vocab_size=300), progress=False)
    raw = text_file.read_text("utf-8")
    other = tmp_path / "other.txt"
    other.write_text(raw[:-50] + "zebra " * 8 + "x\n", "utf-8")
    second = prepare(config(tokenizer="bpe", vocab_size=300, path=str(other)), progress=False)
    assert first.fingerprint != second.fingerprint
    assert first.tokenizer.identity() == second.tokenizer.identity()
    assert len(list((cache / "tokenizers").iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "tokens-train.bin", 100),
        lambda folder: (folder / "tokens-train.bin").open("ab").write(b"12"),
        lambda folder: (folder / "tokens-test.bin").unlink(),
        lambda folder: (folder / "meta.json").write_text("{"),
        lambda folder: (folder / "meta.json").write_text("{}"),
        lambda folder: (folder / "tokenizer.json").write_text(""),
    ],
    ids=["truncated", "too long", "missing", "meta cut", "meta empty", "tokenizer empty"],
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(config, cache, damage):
    first = prepare(config(), progress=False)
    expected = {split: np.array(first.splits[split].tokens) for split in SPLITS}
    damage(cache / "corpora" / first.fingerprint)
    with pytest.warns(UserWarning, match="is damaged .*; rebuilding"):
        second = prepare(config(), progress=False)
    for split in SPLITS:
        assert np.array_equal(second.splits[split].tokens, expected[split])
    assert corpora(cache) == [first.fingerprint]


def edit_unseen(file: Path, content: bytes) -> None:
    """Other content of the same size at the same time of modification, as some programs that copy files leave it."""
    info = file.stat()
    assert len(content) == info.st_size
    while file.stat().st_ctime_ns == info.st_ctime_ns:  # the system's clock of files goes in steps
        file.write_bytes(content)
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"one")
    before = files_stamp([file], settled_ns=0)
    edit_unseen(file, b"two")
    assert files_stamp([file], settled_ns=0) != before


def test_a_file_that_was_just_put_in_place_is_new_whatever_time_it_carries(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"one")
    os.utime(file, (1e9, 1e9))
    assert files_stamp([file], settled_ns=3600 * 10**9) is None


def test_every_training_text_and_size_has_a_tokenizer_of_its_own_in_one_cache(config, cache):
    kind = TOKENIZERS["bpe"]

    def made(text: str, vocab_size: int) -> str:
        cfg = config(tokenizer="bpe", vocab_size=vocab_size)
        return kind.make(cfg, lambda: [text], f"digest of {text}", cache).to_json()

    texts = ("many zebras and many zebras more ", "few words, few words and a few others ")
    found = [made(text, size) for text in texts for size in (258, 262)]
    assert len(set(found)) == 4
    assert made(texts[0], 258) == found[0]


def test_names_go_by_sha256_modulo_twenty():
    counts = {"train": 0, "validation": 0, "test": 0}
    for i in range(2000):
        name = f"module.{i}"
        bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 20
        assert split_of_name(name) == ("test", "validation", *["train"] * 18)[bucket]
        counts[split_of_name(name)] += 1
    assert 60 < counts["test"] < 140
    assert 60 < counts["validation"] < 140


@pytest.mark.parametrize("n", [20, 39, 40, 200])
def test_files_by_content_fill_every_split(n):
    digests = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(n)]
    homes = splits_of_digests(digests)
    assert list(homes.values()).count("test") == list(homes.values()).count("validation") == n // 20
    assert homes == splits_of_digests(digests[::-1])
    share, ordered = n // 20, [homes[digest] for digest in sorted(digests)]
    assert ordered[: 2 * share] == ["test"] * share + ["validation"] * share


def test_a_text_is_cut_at_paragraphs():
    paragraphs = [f"paragraph {i} has some words\n\n" for i in range(200)]
    parts = cut_text("".join(paragraphs))
    assert "".join(parts.values()) == "".join(paragraphs)
    assert all(part.endswith("\n\n") for part in parts.values())
    assert [part.count("paragraph") for part in parts.values()] == pytest.approx([180, 10, 10], abs=2)


@pytest.mark.parametrize("text", ["x" * 1000, "word " * 200, "line\n" * 200, "x" * 50, "数" * 77])
def test_texts_without_paragraphs_are_cut_too(text):
    parts = cut_text(text)
    assert "".join(parts.values()) == text
    assert all(parts.values())
    assert len(parts["train"]) >= 0.87 * len(text)

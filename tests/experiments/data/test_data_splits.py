"""The stated split rules."""

import hashlib

import pytest

from experiments.data.sources.pydocs import split_of_name
from experiments.data.sources.text import cut_text, splits_of_digests


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

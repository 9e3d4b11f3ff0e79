"""Rules by which documents go to training, validation or test. A document never straddles two splits."""

from __future__ import annotations

import hashlib

EVALUATION_SHARE = 20


def split_of_name(name: str) -> str:
    """SHA-256 of ``name`` modulo 20: 0 is test, 1 is validation, the other eighteen are training."""
    bucket = int(hashlib.sha256(name.encode()).hexdigest(), 16) % EVALUATION_SHARE
    return {0: "test", 1: "validation"}.get(bucket, "train")


def splits_of_digests(digests: list[str]) -> dict[str, str]:
    """Split of each content hash: of n, the lowest ⌊n/20⌋ are test, as many again validation, the rest
    training.

    Unlike a modulus this never leaves a split empty (n ≥ 20). Equal contents share one hash and so one split.
    """
    ordered = sorted(set(digests))
    share = len(ordered) // EVALUATION_SHARE
    names = ["test"] * share + ["validation"] * share
    names += ["train"] * (len(ordered) - len(names))
    return dict(zip(ordered, names, strict=True))


def cut_text(text: str) -> dict[str, str]:
    """Cut one text into its first 90 % (training), the next 5 % (validation) and the last 5 % (test).

    A cut moves to the nearest end of a paragraph before it, else of a line, else of a word, if there is one
    within 2 % of the text; otherwise it falls between two characters. From 50 characters on no part is empty.
    """
    first, second = (_border(text, len(text) * part // EVALUATION_SHARE) for part in (18, 19))
    return {"train": text[:first], "validation": text[first:second], "test": text[second:]}


def _border(text: str, target: int) -> int:
    for separator in ("\n\n", "\n", " "):
        found = text.rfind(separator, target - len(text) // 50, target)
        if found >= 0:
            return found + len(separator)
    return target

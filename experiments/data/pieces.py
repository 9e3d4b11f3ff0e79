"""Cutting long documents where a byte-level BPE cannot tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 16
_SAFE = re.compile(r" (?=\S)")


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """Cut ``text`` into pieces of about ``length`` characters whose tokens joined are the whole text's
    tokens.

    GPT-2's pre-tokenizer (` ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`) always starts a word
    at a space that a non-space follows: whatever stands before matches the same way with the rest cut off.
    Text without such a space stays whole. This bounds the memory of one call, and lets one long document use
    all cores.
    """
    start = 0
    while len(text) - start > length:
        cut = _SAFE.search(text, start + length)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]

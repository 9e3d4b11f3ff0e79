"""Cutting a text into pieces for the tokenizers library: of bounded length, joined the text itself.

GPT-2's pre-tokenizer (` ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`, and English contractions) splits a
text into words: runs of letters, of digits, of other characters, of blanks. A text can be cut between two words, except
behind a blank: blanks at the end of a text are one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 16
LONGEST_WORD = 1024
"""Characters of a word that stays whole. Training a BPE takes time with the square of a word's length."""

_BLANK = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # \s of the pre-tokenizer
_ENDS_WORD = re.compile(r"[\t\n\r ](?=\S)|(?<=[^\W_])(?=[\W_])|(?<=[A-Za-z])(?=[0-9])")
_STEP = LONGEST_WORD // 2


def _all_numbers(text: str) -> bool:
    return text.isnumeric() and not any(map(str.isalpha, text))  # some letters are numerals


_KINDS = (  # of a word's characters: whether a text has no others
    str.isalpha,
    _all_numbers,
    re.compile(rf"(?:[^\w{_BLANK}]|_)+").fullmatch,
    re.compile(rf"[{_BLANK}]+").fullmatch,
)


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """Pieces of ``text`` of about ``length`` characters whose tokens, joined, are those of the whole text.

    A word of more than LONGEST_WORD characters (a sequence of bases, a line in a language without blanks) is cut, in
    the same places whatever the length, and its tokens do not go over a cut. This bounds the time of training and the
    memory of one call, and lets one long document use all cores.
    """
    start = 0
    for end in [*_cuts_in_words(text), len(text)]:
        while end - start > length:
            cut = _word_end(text, start + length, min(end, start + length + 4 * LONGEST_WORD))
            if cut is None:
                break
            yield text[start:cut]
            start = cut
        if start < end or not text:
            yield text[start:end]
        start = end


def has_long_words(text: str) -> bool:
    """Return whether `pieces` cuts inside a word of the text."""
    return next(_cuts_in_words(text), None) is not None


def _word_end(text: str, start: int, stop: int) -> int | None:
    """The first place in text[start:stop] at which it can be cut between two words; None: there is none."""
    found = _ENDS_WORD.search(text, start, stop)
    if found:
        return found.start()
    # Letters and numbers in turn, not all of ASCII.
    places = (i for i in range(start, stop) if text[i - 1].isalnum())
    return next((i for i in places if text[i - 1].isalpha() != text[i].isalpha()), None)


def _cuts_in_words(text: str) -> Iterator[int]:
    """Places every LONGEST_WORD characters in longer words. It looks at steps so short that such a word fills one."""
    place = 0
    while len(step := text[place : place + _STEP]) == _STEP:
        kind = next((kind for kind in _KINDS if kind(step)), None)
        if kind:
            start, end = place, place + _STEP
            while start and kind(text[start - 1]):
                start -= 1
            for length in (_STEP, 1):
                while kind(text[end : end + length]):
                    end = min(end + length, len(text))
            yield from range(start + LONGEST_WORD, end, LONGEST_WORD)
            place = end - end % _STEP
        else:
            place += _STEP

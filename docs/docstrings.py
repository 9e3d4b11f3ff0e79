"""Docstrings as Markdown, and the meaning of every key of a configuration dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator

_SPECIAL = re.compile(r"([\\*_<>\[\]#|])")


def markdown(doc: str | None) -> str:
    """A docstring as Markdown: prose stays prose; equations, examples and columns become literal blocks."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(_literal(text) if _is_laid_out(text) else escaped(text) for text in paragraphs)


def _is_laid_out(paragraph: str) -> bool:
    """Return whether a paragraph's spaces mean something: indented lines, or columns of names and meanings."""
    return any(line.startswith("    ") or re.search(r"\S {2,}\S", line) for line in paragraph.splitlines())


def _literal(paragraph: str) -> str:
    return f"```text\n{textwrap.dedent(paragraph)}\n```"


def escaped(text: str) -> str:
    """Text in which Markdown sees no markup, but for `code`."""
    parts = re.split(r"(`+[^`]+`+)", text)
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def key_meanings(cls: type) -> dict[str, str]:
    """Field -> meaning, read from the docstrings of a dataclass and of those it inherits from.

    A meaning begins with `name:`, `name (symbol):` or `name, name:` at the start of a line or after a semicolon, and
    goes on to the next one. What stands in brackets behind a name is added to the name's own meaning.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    found: dict[str, str] = {}
    for base in cls.__mro__[:-1]:
        for keys, text in _entries(inspect.cleandoc(base.__doc__ or ""), names):
            for key, note in keys.items():
                found.setdefault(key, f"{text} ({note})" if note else text)
    return found


def _entries(doc: str, names: set[str]) -> Iterator[tuple[dict[str, str], str]]:
    """(key -> what stands in brackets behind it, text) of a docstring, in its order; text up to the next entry."""
    word = r"(?:[a-z]\w*)(?: \([^()]*\))?"
    heads = list(
        re.finditer(rf"(?:^|(?<=[;.,] )|(?<=[;.,]\n)){word}(?:(?:, | and )\n?{word})*:\s", doc, re.M)
    )
    heads = [h for h in heads if _keys(h.group(), names)]
    ends = [*(head.start() for head in heads[1:]), len(doc)]
    for head, end in zip(heads, ends[: len(heads)], strict=True):
        text = doc[head.end() : end]
        text = text.split("\n\n")[0]
        yield _keys(head.group(), names), " ".join(text.split()).rstrip(" ;.")


def _keys(head: str, names: set[str]) -> dict[str, str]:
    """The fields that the head of an entry names -> what stands in brackets behind each; none if a word is no field."""
    found = {}
    for part in re.split(r",\s*(?![^()]*\))|\s+and\s+", head.strip().rstrip(":")):
        name, _, note = part.strip().partition(" (")
        found[name] = note.removesuffix(")")
    return found if all(key in names for key in found) else {}

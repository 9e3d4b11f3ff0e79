"""What a reader of a page sees, as lines of text: words, links, what hovering tells, and alternatives of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

TOLD = ("alt", "title", "aria-label", "href", "id", "data-sort", "style", "class", "value", "placeholder")
SILENT = ("style", "script", "svg")
LONGEST = 160


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.words: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag, attrs) -> None:
        self.flush()
        if tag in SILENT:
            self.silent += 1
        if self.silent and tag != "svg":
            return
        told = [f"{name}={str(value)[:LONGEST]}" for name, value in attrs if name in TOLD and value]
        if told:
            self.lines.append(f"<{tag} {' '.join(told)}>")

    def handle_endtag(self, tag) -> None:
        self.flush()
        if tag in SILENT:
            self.silent -= 1

    def handle_data(self, data) -> None:
        if not self.silent:
            self.words.append(data)

    def flush(self) -> None:
        text = " ".join("".join(self.words).split())
        self.words.clear()
        if text:
            self.lines.append(text)


def page_lines(html: str) -> Iterator[str]:
    """The page's words in order, a line an element, with the attributes that a reader meets."""
    reader = _Reader()
    reader.feed(html)
    reader.flush()
    yield from reader.lines

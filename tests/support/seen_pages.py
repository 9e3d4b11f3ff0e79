"""What a reader of a page sees: the rows of its tables, and whether it says what its Markdown says."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

SILENT = ("style", "script", "svg")


class _Reader(HTMLParser):
    """The words of a page, and the rows of its tables: cells with, in brackets, what they are sorted by."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tables: list[list[list[tuple[str, str]]]] = []
        self.cell: list[str] | None = None
        self.key, self.silent = "", 0
        self.feed(source)

    def handle_starttag(self, tag, attrs) -> None:
        self.silent += tag in SILENT
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            key = dict(attrs).get("data-sort")
            self.cell, self.key = [], "" if key is None else f" [{key}]"

    def handle_endtag(self, tag) -> None:
        self.silent -= tag in SILENT
        if tag in ("th", "td"):
            self.tables[-1][-1].append((" ".join(" ".join(self.cell).split()), self.key))
            self.cell = None

    def handle_data(self, data) -> None:
        if not self.silent:
            self.words.append(data)
            if self.cell is not None:
                self.cell.append(data)


def tables(html: str) -> list[list[list[tuple[str, str]]]]:
    return _Reader(html).tables


def table_lines(html: str) -> Iterator[str]:
    for table in tables(html):
        yield "# table"
        yield from (" | ".join(f"{text}{key}" for text, key in row) for row in table)


def only_in_markdown(markdown: str, html: str) -> list[str]:
    """What a page does not say of its Markdown's list items and table cells."""
    said = "".join("".join(_Reader(html).words).split())
    found = []
    for line in markdown.splitlines():
        parts = re.split(r"(?<!\\)\|", line) if line.startswith("|") else [line[2:]] * line.startswith("- ")
        plain = (re.sub(r"\\(.)", r"\1", part) for part in parts if not set(part) <= set(" -:"))
        found += [part for part in plain if "".join(part.split()) not in said]
    return found

"""Parser of the marks in a text and of the numbers that they annotate."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from analysis.files import ResultsError

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
NUMBER = r"[+\-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+\-−]?\d+)?(?!\d)(?!\.\d)"
START = r"(?<!\d)(?<!\d[.,])"
"""Condition before a number: it does not begin in the middle of another one."""
ROWS = "rows "


@dataclass(frozen=True)
class Line:
    """One line of a mark: the text it quotes (empty: the table before it) and the words of its expression."""

    number: int
    quote: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """A mark with its lines. number: its line in the text; rows: the column of a table's first cells, or empty."""

    number: int
    source: str
    shared: tuple[str, ...]
    rows: str
    lines: tuple[Line, ...]
    start: int
    end: int


@dataclass(frozen=True)
class NumberInText:
    """A number in the text: as written, its line, and whether a per cent sign follows."""

    text: str
    number: int
    percent: bool

    @property
    def value(self) -> float:
        """The number without thousands separators; a true minus sign counts as a hyphen."""
        return float(self.text.replace(",", "").replace("−", "-"))

    @property
    def half(self) -> float:
        """Return half a unit of the last written digit."""
        mantissa, _, exponent = self.text.replace("−", "-").partition("e")
        return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def marks(text: str) -> list[Mark]:
    """Parse all marks of a text, in order. Raises ResultsError, with the line, for one that cannot be parsed."""
    written, plain = [], _without_comments(text)
    for comment in COMMENT.finditer(text):
        inside = comment[0][len("<!--") : -len("-->")].strip()
        if inside.split(maxsplit=1)[:1] == ["check"]:
            written.append(_mark(inside, _line_of(text, comment.start()), comment.start(), plain))
    return written


def prose(text: str, mark: Mark) -> tuple[str, int]:
    """Return the text from the last heading up to a mark, other marks blank, and its start."""
    return _without_comments(text)[mark.start : mark.end], mark.start


def _without_comments(text: str) -> str:
    """The text with blanks in place of comments, so that all positions stay the same."""
    return COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)


def quoted(text: str, mark: Mark, line: Line) -> list[NumberInText]:
    """Return the numbers at the quote's `#`. Raises ResultsError unless the quote occurs exactly once."""
    before, start = prose(text, mark)
    pieces = [r"\s+".join(map(re.escape, piece.split(" "))) for piece in line.quote.split("#")]
    matches = list(re.finditer(rf"{START}({NUMBER})".join(pieces), before))
    if len(matches) != 1:
        times = f"{len(matches)} times" if matches else "nowhere"
        raise ResultsError(f'"{line.quote}" stands {times} between the heading and the mark, not once')
    return [
        _written(text, start + matches[0].start(n + 1), start + matches[0].end(n + 1))
        for n in range(len(pieces) - 1)
    ]


def table_rows(text: str, mark: Mark) -> list[tuple[str, list[NumberInText]]]:
    """Return the first cell and the numbers of each row of the last Markdown table before a mark.

    Raises ResultsError if there is no table between the heading and the mark.
    """
    before, start = prose(text, mark)
    lines = [(m.start(), m[0]) for m in re.finditer(r"^.*$", before.rstrip(), re.MULTILINE)]
    table: list[tuple[int, str]] = []
    for place, line in reversed(lines):
        if line.startswith("|"):
            table.insert(0, (place, line))
        elif table:
            break
    if len(table) < 3:
        raise ResultsError("no table stands between the heading and the mark")
    rows = []
    for place, line in table[2:]:
        label = line.split("|")[1]
        offset = start + place + len(label) + 2
        numbers = re.finditer(START + NUMBER, text[offset : start + place + len(line)])
        rows.append(
            (label.strip(" *`"), [_written(text, offset + n.start(), offset + n.end()) for n in numbers])
        )
    return rows


def _mark(inside: str, number: int, end: int, plain: str) -> Mark:
    head, *lines = inside.split("\n")
    words = _split(head, number)[1:]
    if not words:
        raise ResultsError(f"line {number}: a mark names its table: <!-- check FOLDER/TABLE")
    rows = lines.pop(0)[len(ROWS) :].strip() if lines and lines[0].startswith(ROWS) else ""
    first = number + 1 + bool(rows)
    read = tuple(_line(line, first + n) for n, line in enumerate(lines) if line.strip())
    if not read:
        raise ResultsError(
            f"line {number}: this mark checks nothing; it needs lines of: text with # | expression"
        )
    headings = [heading.start() for heading in HEADING.finditer(plain, 0, end)]
    return Mark(number, words[0], tuple(words[1:]), rows, read, headings[-1] if headings else 0, end)


def _line(line: str, number: int) -> Line:
    quote, bar, expression = line.partition("|")
    if not bar:
        raise ResultsError(f"line {number}: no bar between the text and its expression: {line.strip()}")
    return Line(number, " ".join(quote.split()), tuple(_split(expression, number)))


def _split(line: str, number: int) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ResultsError(f"line {number}: {error}: {line.strip()}") from error


def _written(text: str, start: int, end: int) -> NumberInText:
    return NumberInText(text[start:end], _line_of(text, start), re.match(r"\s*%", text[end:]) is not None)


def _line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1

"""Compare every marked number of a text with its table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.evidence.number_checks.annotations import Line, Mark, NumberInText, marks, quoted, table_rows
from analysis.evidence.number_checks.published_tables import Tables, Unavailable
from analysis.evidence.number_checks.queries import evaluate
from analysis.files import ResultsError

RELATIONS = {
    "=": lambda a, b: math.isclose(a, b, rel_tol=1e-9),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ELSEWHERE = "_"
"""Placeholder for an expression: another mark checks this number of a row."""


@dataclass
class Outcome:
    """Outcome of a check: counts of numbers and statements compared, problems (a line each), and unchecked marks."""

    numbers: int = 0
    statements: int = 0
    problems: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def check(path: Path, tables: Tables) -> Outcome:
    """Compare every marked number and statement of a file with its tables."""
    outcome, name = Outcome(), path.name
    if name == "README.md":  # of which there are many
        name = "/".join(path.parts[-2:])
    try:
        text = path.read_text(encoding="utf-8")
        written = marks(text)
    except (ResultsError, OSError, UnicodeDecodeError) as error:
        outcome.problems.append(f"{name}: {error}")
        return outcome
    for mark in written:
        try:
            table = tables.get(mark.source)
            _check_rows(name, text, mark, table, outcome) if mark.rows else _check_lines(
                name, text, mark, table, outcome
            )
        except ResultsError as error:
            outcome.problems.append(f"{name}:{mark.number}: {error}")
        except Unavailable as reason:
            outcome.unseen.append(f"{name}:{mark.number}: {reason}")
    return outcome


def _check_lines(name: str, text: str, mark: Mark, table: pd.DataFrame, outcome: Outcome) -> None:
    for line in mark.lines:
        try:
            written = quoted(text, mark, line)
            if not written:
                _check_statement(line, mark, table)
                outcome.statements += 1
                continue
            asked = _alternatives(line.words)
            if len(asked) != len(written):
                raise ResultsError(f"{len(written)} numbers (#) and {len(asked)} expressions")
            for number, words in zip(written, asked, strict=True):
                _compare(name, number, words, mark.shared, mark, table, outcome)
        except ResultsError as error:
            outcome.problems.append(f"{name}:{line.number}: {error}")


def _check_rows(name: str, text: str, mark: Mark, table: pd.DataFrame, outcome: Outcome) -> None:
    if any(line.quote for line in mark.lines):
        raise ResultsError("a mark of a table's rows has no text before its bars")
    asked = [words for line in mark.lines for words in _alternatives(line.words)]
    for label, written in table_rows(text, mark):
        shared = (*mark.shared, f"{mark.rows}={label}")
        if len(written) != len(asked):
            raise ResultsError(f"row '{label}' has {len(written)} numbers, the mark {len(asked)} expressions")
        for number, words in zip(written, asked, strict=True):
            if words != [ELSEWHERE]:
                _compare(name, number, words, shared, mark, table, outcome)


def _compare(
    name: str, written: NumberInText, words: list[str], shared: tuple[str, ...], mark: Mark, table: pd.DataFrame,
    outcome: Outcome,
) -> None:  # fmt: skip
    """Compare one number with one expression and record the result."""
    relation = words[0] if words and words[0] in RELATIONS else "="
    rest = words[1:] if words[:1] == [relation] else words
    value = evaluate(rest, table, shared) * (100 if written.percent else 1)
    if relation == "=":  # as precise as it is written
        right = abs(written.value - value) <= written.half * (1 + 1e-9)
    else:
        right = RELATIONS[relation](written.value, value)
    outcome.numbers += 1
    if not right:
        shown = f"{written.text}{' %' if written.percent else ''}"
        source = " ".join([mark.source, *shared])
        outcome.problems.append(
            f"{name}:{written.number}: written {shown}, which should be {relation} {value:.6g} "
            f"({source}: {' '.join(rest)})"
        )


def _check_statement(line: Line, mark: Mark, table: pd.DataFrame) -> None:
    places = [n for n, word in enumerate(line.words) if word in RELATIONS]
    if len(places) != 1:
        raise ResultsError("text without # takes EXPRESSION < EXPRESSION, also <= > >= =")
    relation = line.words[places[0]]
    left, right = (
        evaluate(words, table, mark.shared)
        for words in (line.words[: places[0]], line.words[places[0] + 1 :])
    )
    if not RELATIONS[relation](left, right):
        raise ResultsError(
            f'"{line.quote}" does not hold: {left:.6g} is not {relation} {right:.6g} ({mark.source})'
        )


def _alternatives(words: tuple[str, ...]) -> list[list[str]]:
    """The words between semicolons."""
    choices: list[list[str]] = [[]]
    for word in words:
        if word == ";":
            choices.append([])
        else:
            choices[-1].append(word)
    return choices

"""Expressions of marks, evaluated on a table to one number; never run as code.

expression   term, or term / term, - and * too, from left to right
term         AGGREGATE COLUMN CONDITION ...             mean value measure=load layer=0
             OUTER of INNER COLUMN CONDITION ... per COLUMN,COLUMN
                                                        max of mean value measure=load per run,layer
             a number                                   1048576
condition    COLUMN=A, =A|B (either), != < <= > >=; = alone: empty. With spaces in it: "label=transformer hc"
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

import pandas as pd

from analysis.files import ResultsError

AGGREGATES = ("mean", "median", "min", "max", "std", "sum", "count", "nunique", "only")
CONDITION = re.compile(r"([\w:]+)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
OPERATORS = {
    "/": lambda a, b: a / b if b else math.nan,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def evaluate(words: Sequence[str], table: pd.DataFrame, shared: Sequence[str] = ()) -> float:
    """Evaluate an expression, split into words; shared: conditions that every term has as well.

    Raises ResultsError for what is not an expression, an unknown column, and rows or a number that are not there.
    """
    terms: list[list[str]] = [[]]
    operators = []
    for word in words:
        if word in OPERATORS:
            operators.append(word)
            terms.append([])
        else:
            terms[-1].append(word)
    values = [_term(term, table, shared) for term in terms]
    value = values[0]
    for operator, other in zip(operators, values[1:], strict=True):
        value = OPERATORS[operator](value, other)
    if not math.isfinite(value):
        raise ResultsError(f"the table gives no finite number for: {' '.join(words)}")
    return value


def selected(table: pd.DataFrame, conditions: Sequence[str]) -> pd.Series:
    """Return for each row whether all conditions hold; ResultsError for an unknown column, and if no row is left."""
    kept = pd.Series(True, index=table.index)
    for condition in conditions:
        kept &= _holds(table, condition)
    if not kept.any():
        raise ResultsError(f"no row of the table has {' '.join(conditions)}")
    return kept


def _term(words: list[str], table: pd.DataFrame, shared: Sequence[str]) -> float:
    if len(words) == 1 and re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", words[0]):
        return float(words[0])
    outer = words[0] if words[1:2] == ["of"] else None
    words, groups = _without_groups(words[2:] if outer else words)
    if len(words) < 2 or bool(outer) != bool(groups):
        raise ResultsError("a term is AGGREGATE COLUMN CONDITION ..., or A of B COLUMN ... per COLUMN,COLUMN")
    values, *keys = (_column(table, name) for name in (words[1], *groups))
    kept = selected(table, [*shared, *words[2:]])
    if not groups:
        return _aggregate(values[kept], words[0])
    inner = values[kept].groupby([key[kept] for key in keys], dropna=False)
    return _aggregate(inner.agg(lambda part: _aggregate(part, words[0])), outer)


def _without_groups(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before `per`, and the columns after it."""
    if "per" not in words:
        return words, []
    place = words.index("per")
    return words[:place], [group for word in words[place + 1 :] for group in word.split(",") if group]


def _aggregate(values: pd.Series, name: str | None) -> float:
    if name not in AGGREGATES:
        raise ResultsError(f"no aggregate '{name}'; there are {', '.join(AGGREGATES)}")
    if name in ("count", "nunique"):
        return float(getattr(values, name)())
    if not pd.api.types.is_numeric_dtype(values):
        raise ResultsError(
            f"column '{values.name}' holds no numbers: only count and nunique can be asked of it"
        )
    if name == "only":
        if len(values) != 1:
            raise ResultsError(f"{len(values)} rows where `only` takes one")
        return float(values.iloc[0])
    return float(getattr(values.astype("float64"), name)())


def _column(table: pd.DataFrame, name: str) -> pd.Series:
    if name not in table.columns:
        close = difflib.get_close_matches(name, table.columns, 3, 0.4)
        raise ResultsError(f"no column '{name}'; there are {', '.join(close or table.columns)}")
    return table[name]


def _holds(table: pd.DataFrame, condition: str) -> pd.Series:
    match = CONDITION.fullmatch(condition)
    if match is None:
        raise ResultsError(f"'{condition}' is not a condition: COLUMN=VALUE, also != < <= > >=")
    name, operator, value = match.groups()
    column = _column(table, name)
    if value == "":
        empty = column.isna() | (column == "").fillna(False)
        return ~empty if operator == "!=" else empty
    if pd.api.types.is_numeric_dtype(column):
        return _compare(
            column.astype("float64"), operator, [_as_float(part, name) for part in value.split("|")]
        )
    if operator not in ("=", "!="):
        raise ResultsError(f"'{condition}': column '{name}' holds text, which only = and != compare")
    return _compare(column, operator, value.split("|"))


def _as_float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ResultsError(f"column '{name}' holds numbers, and '{text}' is not a number") from None


def _compare(column: pd.Series, operator: str, values: list) -> pd.Series:
    if operator in ("=", "!="):
        return column.isin(values) ^ (operator == "!=")
    if len(values) > 1:
        raise ResultsError(f"{operator} takes one number, not {len(values)}")
    compare = {"<": column.lt, "<=": column.le, ">": column.gt, ">=": column.ge}
    return compare[operator](values[0])

"""A table in LaTeX, in the style of the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis import units
from analysis.report.tables import Field

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin the row's option
    "]": "{]}",
    "*": "{*}",  # and so would this
    "±": r"\ensuremath{\pm}",
    "−": r"\ensuremath{-}",
    "∞": r"\ensuremath{\infty}",
    "–": "--",
}


def escape(text: str) -> str:
    """The text as LaTeX sets it, on one line."""
    return "".join(SPECIAL.get(character, character) for character in " ".join(text.split()))


def table(fields: Sequence[Field], rows: Sequence[Any], caption: str) -> str:
    r"""A tabular to \input into a table environment; columns without any value are left out.

    Numbers are at the right. caption: goes into a comment.
    """
    shown = [field for field in fields if any(field.show(row) != units.MISSING for row in rows)]
    lines = [_row(field.heading for field in shown)]
    if any(field.unit for field in shown):
        lines.append(_row(f"({field.unit})" if field.unit else "" for field in shown))
    body = [_row(field.show(row) for field in shown) for row in rows]
    columns = "".join("r" if field.kind == "number" else "l" for field in shown)
    parts = [
        f"% {' '.join(caption.split())}",
        r"% Needs \usepackage{booktabs}; wide tables fit with \resizebox{\textwidth}{!}{\input{...}}.",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *lines,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


def _row(cells) -> str:
    return " & ".join(map(escape, cells)) + r" \\"

"""LaTeX tables in the style of the package booktabs."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from analysis import files
from analysis.report.columns import Field

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
    "–": "--",
    "—": "---",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "§": r"\S{}",
}

GREEK = {
    chr(code): rf"\{name}"
    for first, names in (
        ("α", "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi"),
        ("π", "pi rho varsigma sigma tau upsilon phi chi psi omega"),
    )
    for code, name in enumerate(names.split(), ord(first))
}
CAPITALS = dict(
    zip(
        "ΓΔΘΛΞΠΣΥΦΨΩ",
        ["Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega"],
        strict=True,
    )
)
SIGNS = dict(
    zip(
        "±×·÷∞≈≤≥≠→←∑∏√∂∇∈µ°†‡",
        [
            r"pm",
            r"times",
            r"cdot",
            r"div",
            r"infty",
            r"approx",
            r"le",
            r"ge",
            r"ne",
            r"to",
            r"leftarrow",
            r"sum",
            r"prod",
            r"surd",
            r"partial",
            r"nabla",
            r"in",
            r"mu",
            r"circ",
            r"dagger",
            r"ddagger",
        ],
        strict=True,
    )
)
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
MATHS = {
    "−": "-",
    **GREEK,
    **{sign: rf"\{name}" for sign, name in (CAPITALS | SIGNS).items()},
    **{sign: f"^{{{digit}}}" for sign, digit in RAISED.items()},
}
"""Signs that pdflatex knows in formulas only."""


def escape(text: str) -> str:
    """Escape text for pdflatex, on one line; signs without a glyph lose their accent or become "?"."""
    return "".join(map(_sign, files.visible(text)))


def _sign(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character.isascii() or unicodedata.combining(character):
        return character if character.isascii() else ""
    if character in MATHS:
        return rf"\ensuremath{{{MATHS[character]}}}"
    plain = (
        unicodedata.normalize("NFKD", character)
        .replace("\N{FRACTION SLASH}", "/")
        .encode("ascii", "ignore")
        .decode()
    )
    return "".join(SPECIAL.get(c, c) for c in plain) or "?"


def table(fields: Sequence[Field], rows: Sequence[Any], caption: str) -> str:
    r"""Format rows as a tabular to \input into a table environment; empty columns are left out.

    Numbers are at the right. caption: goes into a comment.
    """
    shown = [field for field in fields if any(field.show(row) != files.MISSING for row in rows)]
    lines = [_row(field.heading for field in shown)]
    if any(field.unit for field in shown):
        lines.append(_row(f"({field.unit})" if field.unit else "" for field in shown))
    body = [_row(field.show(row) for field in shown) for row in rows]
    columns = "".join("r" if field.kind == "number" else "l" for field in shown)
    parts = [
        f"% {files.visible(caption)}",
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

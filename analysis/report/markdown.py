"""The report as Markdown (CommonMark with tables), figures linked as files of the same folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from analysis.report.columns import Field
from analysis.report.content import Content
from analysis.report.page import environment

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&!])")


def escape(text: object) -> str:
    """Escape text for Markdown, on one line, for paragraphs, headings and cells."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def fenced(text: str, language: str = "") -> str:
    """Wrap text in a code block whose fences are longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") else "\n"
    return f"{fence}{language}\n{text}{end}{fence}"


def table(fields: Sequence[Field], rows: Sequence[Any]) -> str:
    """Format rows as a Markdown table, numbers aligned right."""
    heads = [escape(f"{field.heading} ({field.unit})" if field.unit else field.heading) for field in fields]
    marks = ["---:" if field.kind == "number" else "---" for field in fields]
    cells = [[escape(field.show(row)) for field in fields] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, marks, *cells))


def render(content: Content) -> str:
    """Render the whole report as Markdown."""
    jinja = environment(autoescape=False)
    jinja.filters |= {"md": escape, "fenced": fenced}
    return jinja.get_template("report.md.j2").render(content=content, table=table)

"""The Jinja environment that the templates of all formats share."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import units
from analysis.report import report_columns, summary

TEMPLATES = Path(__file__).parents[1] / "templates"


def environment(*, autoescape: bool) -> Environment:
    """Return the Jinja environment of analysis/templates; undefined names are errors."""
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        "whole": units.whole,
        "engineering": units.engineering,
        "memory": units.memory,
        "percent": units.percent,
        "text": report_columns.text,
        "rows": report_columns.rows,
    }
    jinja.globals |= {
        "QUALITY": report_columns.QUALITY,
        "BALANCE": report_columns.BALANCE,
        "MACHINES": report_columns.MACHINES,
        "VERSIONS": report_columns.VERSIONS,
        "count": summary.count,
    }
    return jinja

"""The Jinja environment that the templates of all formats share."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import units
from analysis.report import summary, tables

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
        "text": tables.text,
        "rows": tables.rows,
    }
    jinja.globals |= {
        "QUALITY": tables.QUALITY,
        "BALANCE": tables.BALANCE,
        "MACHINES": tables.MACHINES,
        "VERSIONS": tables.VERSIONS,
        "count": summary.count,
    }
    return jinja

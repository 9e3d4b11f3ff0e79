"""The report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis import files
from analysis.plotting.style import series_key
from analysis.report import columns, content
from analysis.report.columns import sort_key
from analysis.report.content import Content

# A figure's SVG as part of an HTML page.

_BEFORE = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_LEFT_OUT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL)
_SIZE = re.compile(r' (?:width|height|version|xmlns(?::xlink)?)="[^"]*"')
_IDS = re.compile(r'(\bid="|\bxlink:href="#|url\(#)')


def inline(svg: str, name: str) -> str:
    """Return an SVG file that matplotlib wrote as an element of a page, its ids beginning with ``name``-.

    Left out are prolog, comments, metadata, the style that would hold for the whole page, the namespaces, which HTML
    knows, and the size: CSS gives it.
    """
    element = _LEFT_OUT.sub("", _BEFORE.sub("", svg, count=1))
    opening, end, rest = element.partition(">")
    return _IDS.sub(rf"\g<1>{name}-", _SIZE.sub("", opening) + end + rest).strip()


# The environment of the templates of all formats.

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
        "whole": files.whole,
        "engineering": files.engineering,
        "memory": files.memory,
        "percent": files.percent,
        "text": columns.text,
        "rows": columns.rows,
    }
    jinja.globals |= {
        "QUALITY": columns.QUALITY,
        "BALANCE": columns.BALANCE,
        "HARNESS": columns.HARNESS,
        "MACHINES": columns.MACHINES,
        "VERSIONS": columns.VERSIONS,
        "count": content.count,
    }
    return jinja


# The page.


def render(content: Content) -> str:
    """Render the report as HTML; templates escape every text from a result file."""
    jinja = environment(autoescape=True)
    jinja.globals["sort_key"] = sort_key
    jinja.globals["series_key"] = series_key
    jinja.filters["inline"] = lambda figure: Markup(inline(figure.svg, figure.name))
    csv = files.csv_text(content.comparison.drop(columns=["series", "dot"]))
    encoded = base64.b64encode(csv.encode()).decode()
    return jinja.get_template("report.html.j2").render(
        content=content, comparison_csv=f"data:text/csv;base64,{encoded}"
    )

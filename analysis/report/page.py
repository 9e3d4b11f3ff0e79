"""The report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64

from markupsafe import Markup

from analysis.plotting.series_marks import series_key
from analysis.report.content import Content
from analysis.report.inline_svg import inline
from analysis.report.rendering import environment
from analysis.report.report_columns import sort_key


def render(content: Content) -> str:
    """Render the report as HTML; templates escape every text from a result file."""
    jinja = environment(autoescape=True)
    jinja.globals["sort_key"] = sort_key
    jinja.globals["series_key"] = series_key
    jinja.filters["inline"] = lambda figure: Markup(inline(figure.svg, figure.name))
    csv = content.comparison.drop(columns=["series", "dot"]).to_csv(index=False)
    encoded = base64.b64encode(csv.encode()).decode()
    return jinja.get_template("report.html.j2").render(
        content=content, comparison_csv=f"data:text/csv;base64,{encoded}"
    )

"""Legends of series."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.plotting.style import STYLE, SeriesStyle

LEGEND = 50
"""Characters per row of a legend of this width, including the room of each entry's handle."""


def legend_entry(label: str, series_style: SeriesStyle, **options) -> Line2D:
    """Return the legend entry of a series."""
    style = {"linestyle": series_style.linestyle, "markersize": 5, **options}
    return Line2D([], [], color=series_style.color, marker=series_style.marker, label=label, **style)


def legend_entries(styles: dict[str, SeriesStyle], labels: Iterable[str] | None = None) -> list[Line2D]:
    """Return legend entries with small markers in the order of ``styles``, of all or the given labels."""
    wanted = set(styles if labels is None else labels)
    return [
        legend_entry(label, series_style, markersize=4)
        for label, series_style in styles.items()
        if label in wanted
    ]


def legend_below(figure: Figure, handles: list, columns: int = 2) -> None:
    """Add a legend under the axes, where it hides no data; its text shrinks where labels would be cut off."""
    columns = min(columns, max(1, len(handles)))
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    size = STYLE["legend.fontsize"] * min(1, LEGEND / max(1, columns * longest))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=size)

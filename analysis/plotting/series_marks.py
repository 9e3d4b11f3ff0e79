"""Marks of series in a figure's SVG, by which a page lights one model up, or hides it, in every figure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from matplotlib.artist import Artist
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from analysis.comparing.matching import without_marks
from analysis.plotting.style import SeriesStyle


def series_key(label: object) -> str:
    """Return the key of a series on a page: part of a hash of its label without marks."""
    return hashlib.sha256(without_marks(str(label)).encode("utf-8", "replace")).hexdigest()[:8]


def mark_series(figure: Figure, styles: Mapping[str, SeriesStyle]) -> None:
    """Give every artist of a series the id "series.KEY.N" in the SVG, in a legend "legend.KEY.N".

    An artist is of the series whose colour it has (`series_styles` gives no two the same), a text of the one whose
    label it says.
    """
    colors = {to_hex(style.color): series_key(label) for label, style in styles.items()}
    labels = {label: series_key(label) for label in styles}
    legends = {part for legend in _legends(figure) for part in legend.findobj()}
    for number, artist in enumerate(figure.findobj()):
        key = labels.get(artist.get_text()) if isinstance(artist, Text) else colors.get(_color(artist))
        if key is not None:
            artist.set_gid(f"{'legend' if artist in legends else 'series'}.{key}.{number}")


def _legends(figure: Figure) -> list[Artist]:
    inside = (axes.get_legend() for axes in figure.axes)
    return [*figure.legends, *(legend for legend in inside if legend is not None)]


def _color(artist: Artist) -> str | None:
    """The one colour of a line, a patch or a collection, #rrggbb; None of others, and of several colours."""
    if isinstance(artist, Line2D):
        return to_hex(artist.get_color())
    if isinstance(artist, Patch):
        return to_hex(artist.get_facecolor())
    if isinstance(artist, Collection):
        faces = artist.get_facecolor()
        found = {to_hex(color) for color in (faces if len(faces) else artist.get_edgecolor())}
        return found.pop() if len(found) == 1 else None
    return None

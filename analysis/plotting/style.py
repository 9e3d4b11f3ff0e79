"""One style for every figure: fonts, sizes, colours, and files that come out the same byte for byte.

Figures are built without pyplot, so they need no display and leave no global state behind.
"""

from __future__ import annotations

import colorsys
import contextlib
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import is_color_like, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from analysis.comparing.matching import without_marks
from analysis.files import write_atomically

WIDTH = 5.0
"""Inches. At 96 dots an inch text of 10 points is 13 px on a desktop and still legible on a phone."""

INK, FAINT = "#22252b", "#d9dce1"

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#8a8f98",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "archzoo",
    "path.simplify": True,
}

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b", "#8c564b")
"""Okabe and Ito's colours (yellow replaced: too faint on white), for series without a colour of their own."""

LINESTYLES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)))
DARKEST, LIGHTEST = 0.16, 0.72
BRIGHT = 0.35
"""Lightness limits of a colour's shades, and the luminance above which a lighter shade is illegible on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

SPREAD = 33
"""A colour's RGB number modulo this is the index of its first line style and marker. So architectures of different
colours differ in these as well, and each has the same style in every figure, whichever others are drawn."""

LARGEST_LEGEND = 0.4
"""A legend that takes more than this share of a figure's height makes the figure higher by as much."""

COLOURS = 64
"""Of a picture that is committed (`keep_lighter`)."""

GROWTH = ((1, 1), (1, 1.5), (1, 2), (1.5, 1), (2, 1), (2, 2), (4, 4))
"""Multiples of width and height that a figure tries in turn until its axes have room."""

styled = mpl.rc_context(STYLE)
"""Decorator of every function that builds a figure."""


class SeriesStyle(NamedTuple):
    """Colour, line style and marker of one series, the same in every figure of a report."""

    color: str
    linestyle: str | tuple
    marker: str

    def line(self) -> dict:
        """Return colour, line style and marker as keywords of `Axes.plot` and `Line2D`."""
        return self._asdict()


def series_styles(series: Iterable[tuple[str, str | None]]) -> dict[str, SeriesStyle]:
    """Return a SeriesStyle for each (label, colour).

    The colour belongs to the architecture, and line style and marker to the colour. Several series of one colour
    keep its hue and get different shades, line styles and markers. So all can be told apart also in print and
    without colour vision.
    The order of the series does not matter: figures of the same set agree.
    """
    families: dict[str, list[str]] = {}
    for position, (label, color) in enumerate(sorted(dict(series).items(), key=_unmarked)):
        valid = is_color_like(color)
        families.setdefault(to_hex(color if valid else PALETTE[position % len(PALETTE)]), []).append(label)
    found = {}
    for color, labels in families.items():
        first = int(color[1:], 16) % SPREAD
        for place, label in enumerate(labels):
            shade, turn = _shade(color, place, len(labels)), first + place
            found[label] = SeriesStyle(
                shade, LINESTYLES[turn % len(LINESTYLES)], MARKERS[turn % len(MARKERS)]
            )
    return found


def table_styles(table: pd.DataFrame, column: str = "label") -> dict[str, SeriesStyle]:
    """Return the style of each value of ``column`` of a figure's table, by the table's column ``color``."""
    return series_styles(table[[column, "color"]].drop_duplicates().itertuples(index=False, name=None))


def _unmarked(series: tuple[str, str | None]) -> str:
    """Return the sort key of a series: its label without marks, so that a mark does not change its shade."""
    return without_marks(str(series[0]))


def _shade(color: str, place: int, count: int) -> str:
    """Return the colour itself at place 0, then darker and lighter shades in turn; of a bright colour only darker."""
    if place == 0:
        return color
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(color))
    if _luminance(color) > BRIGHT:
        reach, target = place / (count - 1), DARKEST
    else:
        reach, target = (place + 1) // 2 / (count // 2), DARKEST if place % 2 else LIGHTEST
    return to_hex(colorsys.hls_to_rgb(hue, lightness + reach * (target - lightness), saturation))


def _luminance(color: str) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def new_figure(height: float, rows: int = 1, **options) -> tuple[Figure, list]:
    """Return a figure of the common width with ``rows`` axes below each other."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, 1, squeeze=False, **options)[:, 0])


def panels(rows: int, columns: int, height: float, **options) -> tuple[Figure, list[list]]:
    """Return a figure of the common width with rows × columns axes of equal size; ``height``: inches a row."""
    figure = Figure(figsize=(WIDTH, rows * height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def heat_map(axes: Axes, values: object, *, low: float = 0.0, high: float | None = None) -> AxesImage:
    """Draw a heat map, white (low) to black (high), first row on top, without grid."""
    axes.grid(False)
    return axes.imshow(values, cmap="bone_r", vmin=low, vmax=high, aspect="auto", interpolation="nearest")


@styled
def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.svg and ``stem``.png (200 dots an inch) atomically; same figure, same bytes."""
    formats = {
        ".svg": {"metadata": {"Date": None, "Creator": "archzoo"}},
        ".png": {"metadata": {"Software": "archzoo"}, "dpi": 200},
    }
    _lay_out(figure)
    return [
        write_atomically(stem.with_name(stem.name + suffix), partial(figure.savefig, **options))
        for suffix, options in formats.items()
    ]


def keep_lighter(svg: Path, png: Path) -> Path:
    """Delete the larger one of a figure's two files, the PNG reduced to a palette first; returns the other.

    A figure has few colours, and their blends with white: it looks the same in a palette of COLOURS, at a quarter of
    the size.
    """
    with Image.open(png) as image:
        few = image.convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
    write_atomically(png, partial(few.save, optimize=True))
    kept, other = sorted((svg, png), key=lambda path: path.stat().st_size)
    other.unlink()
    return kept


def _lay_out(figure: Figure) -> None:
    """Place the axes; a figure grows where its legend or its labels leave them no room.

    A legend of many models is as high as a whole figure of few panels, and matplotlib then leaves the axes unplaced.
    """
    width, height = figure.get_size_inches()
    legends = sum(legend.get_window_extent().height for legend in figure.legends) / figure.dpi
    if legends > LARGEST_LEGEND * height:
        height += legends
    for wider, higher in GROWTH:
        figure.set_size_inches(wider * width, higher * height)
        with warnings.catch_warnings(), contextlib.suppress(UserWarning):
            warnings.filterwarnings("error", "constrained_layout not applied", UserWarning)
            figure.draw_without_rendering()
            break
    figure.set_layout_engine("none")  # solved once; for a grid of maps it costs more than drawing


def figure_note(figure: Figure, text: str) -> None:
    """Write a small note over the figure, at the right; nothing for an empty text."""
    if text:
        figure.suptitle(text, x=0.995, ha="right", fontsize=8, color="#5a5f69")

"""One style for every figure: fonts, sizes, colours, captions, legends, and files that are the same byte for byte.

Figures are built without pyplot: they need no display and leave no global state behind.
"""

from __future__ import annotations

import colorsys
import contextlib
import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.colors import is_color_like, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterSciNotation
from PIL import Image

from analysis.comparing.equal_terms import without_marks
from analysis.files import listing, visible, write_atomically, write_text

WIDTH = 5.0
"""Inches. At 96 dots an inch text of 10 points is 13 px on a desktop and still legible on a phone."""

INK, FAINT = "#22252b", "#d9dce1"

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.parse_math": False,  # names come from files: "$" and "^" in them are no formulas
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


_FORMATS = {
    ".svg": {"metadata": {"Date": None, "Creator": "archzoo"}},
    ".png": {"metadata": {"Software": "archzoo"}, "dpi": 200},
}


@styled
def save(
    figure: Figure, stem: Path, suffixes: Iterable[str] = tuple(_FORMATS), *, small: bool = False
) -> list[Path]:
    """Write ``stem``.svg and ``stem``.png (200 dots an inch) atomically; same figure, same bytes.

    small: the SVG takes a third of the bytes. Text is text, in the reader's font, and not outlines; coordinates have
    two decimals.
    """
    plain_powers(figure)
    _lay_out(figure)
    with mpl.rc_context({"svg.fonttype": "none" if small else STYLE["svg.fonttype"]}):
        written = [
            write_atomically(
                stem.with_name(f"{stem.name}{suffix}"), partial(figure.savefig, **_FORMATS[suffix])
            )
            for suffix in suffixes
        ]
    if small:
        for path in written:
            if path.suffix == ".svg":
                write_text(
                    path, _COORDINATES.sub(_rounded, _INDENT.sub("", path.read_text(encoding="utf-8")))
                )
    return written


_INDENT = re.compile(r"^ +", re.MULTILINE)
_COORDINATES = re.compile(r'(?<= d=")[^"]+|(?<= [xy]=")[^"]+|(?<=translate\()[^)]+|(?<=rotate\()[^)]+')
_DECIMALS = re.compile(r"\d+\.\d{3,}")


def _rounded(found: re.Match) -> str:
    return _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}", found[0])


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


_POWER = re.compile(r"\^\{(-?\d+)\}")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class _PlainPowers(LogFormatterSciNotation):
    """Matplotlib's labels of logarithmic scales as characters, 10⁻³, where it writes formulas."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        label = super().__call__(x, pos).removeprefix(r"$\mathdefault{").removesuffix("}$")
        return _POWER.sub(lambda found: found[1].translate(_RAISED), label.replace(r"\times", "×")).replace(
            "-", "−"
        )


def plain_powers(figure: Figure) -> None:
    """Let logarithmic scales have labels without formulas, which no text of a figure is taken for."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for ticks in (axis.major, axis.minor):
            if isinstance(ticks.formatter, LogFormatterSciNotation):
                ticks.formatter.__class__ = _PlainPowers


def figure_note(figure: Figure, text: str) -> None:
    """Write a small note over the figure, at the right; nothing for an empty text."""
    if text:
        figure.suptitle(text, x=0.995, ha="right", fontsize=8, color="#5a5f69")


# Captions: seeds and texts, bands and dots, models without data.

QUOTED = 160
"""So many characters of a sentence are quoted in a caption."""


def seeds_text(seeds: Iterable) -> str:
    """Format seeds as "seed 0" or "seeds 0, 1"."""
    known = sorted({int(seed) for seed in seeds if seed == seed and seed is not None})
    return f"seed{'s' * (len(known) != 1)} {', '.join(map(str, known)) or 'not recorded'}"


def provenance_text(table: pd.DataFrame) -> str:
    """Name seeds and training text: "Seeds 0, 1. Trained on pydocs", with a full stop."""
    seeds = seeds_text(table["seed"].dropna()).capitalize()
    return f"{seeds}. Trained on {listing(table['training_set'].dropna().unique())}."


def test_set_text(table: pd.DataFrame) -> str:
    """Name the test text: "Tested on the test split of pydocs", with a full stop."""
    return f"Tested on the test split of {listing(table['test_set'].dropna().unique())}."


def split_text(table: pd.DataFrame) -> str:
    """Name the split that probes read: "the test split", or "held-out text" where tables do not say."""
    names = sorted(table["split"].dropna().unique())
    return f"the {listing(names)} split{'s' * (len(names) > 1)}" if names else "held-out text"


def sentence_text(table: pd.DataFrame) -> str:
    """Name the probed sentence: "the sentence “The lazy dog”", or "one held-out sentence" where none was given."""
    texts = [visible(text) for text in table["given"].dropna().unique()]
    shown = [f"“{text if len(text) <= QUOTED else text[: QUOTED - 1] + '…'}”" for text in texts]
    if shown and table["given"].isna().any():
        shown.append("a held-out one")
    return f"the sentence{'s' * (len(shown) > 1)} {listing(shown)}" if shown else "one held-out sentence"


def rates_text(table: pd.DataFrame) -> str:
    """Return a sentence on the rates that ``best_rates`` left out; "" if each model had one rate."""
    if (table["rates"] == 1).all():
        return ""
    return " Of the learning rates tried, each model has the one with its lowest validation loss."


def labels_with_data(table: pd.DataFrame) -> list[str]:
    """Return the labels that have something to draw, in the table's order."""
    return list(table.loc[table["run"].notna(), "label"].unique())


def absent_text(table: pd.DataFrame, what: str) -> str:
    """Return "No attention: mesanet and mom. ", or "" where every model has data."""
    missing = [label for label in table["label"].unique() if label not in labels_with_data(table)]
    return f"{what}: {listing(missing, 20)}. " if missing else ""


def band_text(table: pd.DataFrame) -> str:
    """Return the meaning of lines and bands over seeds, or "one seed: no band"."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "mean over seeds, bands: lowest to highest seed" if several else "one seed: no band"


def dots_text(table: pd.DataFrame) -> str:
    """Return the meaning of the dots of `single_heads`."""
    several = table.groupby("label")["run"].nunique().max() > 1
    return "single heads of each seed" if several else "single heads"


# Colours of what a router chooses: timelines, memories, experts.


def choice_colors(choices: pd.Series) -> dict[int, str]:
    """Return a colour for each choice, the same in all figures; beyond the palette, rare choices share the last."""
    found = sorted(int(choice) for choice in choices.unique())
    if found and found[-1] < len(PALETTE):
        return {choice: PALETTE[choice] for choice in found}
    if len(found) > len(PALETTE):
        common = [int(choice) for choice in choices.value_counts().index]
        found = [*sorted(common[: len(PALETTE) - 1]), *sorted(common[len(PALETTE) - 1 :])]
    return {choice: PALETTE[min(place, len(PALETTE) - 1)] for place, choice in enumerate(found)}


def choice_legend(colors: dict[int, str], noun: str) -> list[Patch]:
    """Return a legend entry for each colour of `choice_colors`: "timeline 0", ..., and "others" for the shared one."""
    own = list(colors)[: len(PALETTE)] if len(colors) <= len(PALETTE) else list(colors)[: len(PALETTE) - 1]
    patches = [Patch(color=colors[choice], label=f"{noun} {choice}") for choice in own]
    return patches + ([Patch(color=PALETTE[-1], label="others")] if len(own) < len(colors) else [])


# Legends of series.

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


# Marks of series in a figure's SVG, by which a page lights one model up, or hides it, in every figure.


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

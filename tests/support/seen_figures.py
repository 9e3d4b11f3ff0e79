"""What a reader of a figure sees, as lines of text: axes, lines, bars, maps, words, colours; nothing of pixels."""

import math
import re
import zlib
from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
from matplotlib import collections, patches, text
from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FixedLocator, LogFormatter, NullFormatter, ScalarFormatter

from support.recorded import number

LONGEST = 240
WHOLE = 8
"""So many numbers are written one by one; of more there is a digest, in which each counts, and its place."""


def figure_lines(figure: Figure) -> Iterator[str]:
    """Everything drawn in a figure, in the order in which it was drawn."""
    width, height = figure.get_size_inches()
    yield f"size {number(width)} x {number(height)}"
    for words in figure.texts:
        yield f"figure text {words.get_text()!r} {to_hex(words.get_color())}"
    if figure.get_suptitle():
        yield f"over it {figure.get_suptitle()!r}"
    for legend in figure.legends:
        yield from legend_lines(legend)
    for place, axes in enumerate(figure.axes):
        yield from axes_lines(axes, f"axes {place}")


def totals(figure: Figure) -> Iterator[str]:
    """A figure in a few lines an axes: of each kind of thing in it the count, the words, sums of its numbers."""
    parts: dict[str, list[str]] = {}
    for line in [*figure_lines(figure), "axes"]:
        if line.startswith("axes"):
            yield from (f"  {kind} {_total(found)}" for kind, found in parts.items())
            parts = {}
        if line.startswith(("axes ", "  x ", "  y ", "size ")):
            yield line[:LONGEST]
        else:
            parts.setdefault(line.split(None, 1)[0], []).append(line)


def _total(lines: list[str]) -> str:
    pieces = [piece for line in lines for piece in re.split(r"[\s\[\](),]+", line)[1:] if piece]
    values, words = [], []
    for piece in pieces:
        try:
            values.append(float(piece))
        except ValueError:
            words.append(piece)
    known = [value for value in values if math.isfinite(value)]
    sums = sum(known), sum(value * math.sqrt(place) for place, value in enumerate(known, 1))
    told = " ".join(dict.fromkeys(words))
    text = told if len(told) <= LONGEST else f"{told[:LONGEST]}... {zlib.crc32(' '.join(words).encode())}"
    return (
        f"{len(lines)}: {len(words)} words: {text}; {len(values)} numbers: {short(sums[0])} {short(sums[1])}"
    )


def axes_lines(axes: Axes, name: str) -> Iterator[str]:
    """One axes: titles, scales, limits, ticks, then what is in it."""
    if isinstance(axes, SecondaryAxis):
        yield f"{name}: a second {axes._orientation} axis {axis_text(axes, axes._orientation)}"
        return
    titles = [axes.get_title(loc=where) for where in ("left", "center", "right")]
    yield f"{name}: {' | '.join(filter(None, titles))!r}{'' if axes.axison else ' (axis off)'}"
    for which in "xy":
        yield f"  {which} {axis_text(axes, which)}"
    for artist in (*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.texts):
        if artist.get_visible():
            yield from (f"  {line}" for line in artist_lines(artist))
    if axes.get_legend() is not None:
        yield from (f"  {line}" for line in legend_lines(axes.get_legend()))
    for place, child in enumerate(axes.child_axes):
        yield from axes_lines(child, f"{name} inside {place}")


def axis_text(axes: Axes, which: str) -> str:
    axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes, f"get_{which}lim")()
    found = f"{axis.label.get_text()!r} {axis.get_scale()} {short(low)} to {short(high)}"
    fixed = isinstance(axis.get_major_locator(), FixedLocator)
    places = (
        list(axis.get_major_locator().locs)
        if fixed
        else [low + share * (high - low) for share in (0.25, 0.75)]
    )
    form = axis.get_major_formatter()
    if fixed:
        found += f" ticks {numbers(places)}"
    if isinstance(form, FixedFormatter):
        found += f" named {list(form.seq)}"
    elif not isinstance(form, ScalarFormatter | LogFormatter | NullFormatter):
        found += f" shown as {[form(place, 0) for place in places[:4]]}"
    elif axis.label.get_text().startswith(("layer", "sub-block")):
        ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        found += " at whole numbers" if ticks == [round(tick) for tick in ticks] else f" at {numbers(ticks)}"
    return found if axis.get_visible() else f"{found} hidden"


def artist_lines(artist: object) -> Iterator[str]:
    """One thing in an axes: what it is, its label, style and numbers."""
    if isinstance(artist, Line2D):
        style = f"{line_style(artist)} {artist.get_linewidth():g}"
        yield f"line {shown(artist)} {style} x {numbers(artist.get_xdata())} y {numbers(artist.get_ydata())}"
    elif isinstance(artist, AxesImage):
        low, high = artist.get_clim()
        values = np.ma.filled(np.ma.asarray(artist.get_array(), dtype=float), np.nan)
        shades = f"{artist.get_cmap().name} {short(low)} to {short(high)}"
        yield f"map {shades} {numbers(values)} in {numbers(artist.get_extent())}"
    elif isinstance(artist, patches.Rectangle):
        box = (artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height())
        yield f"bar {shown(artist)} {colored(artist.get_facecolor())} {artist.get_hatch() or ''} {numbers(box)}"
    elif isinstance(artist, patches.Patch):
        box = artist.get_path().vertices
        yield f"{type(artist).__name__} {shown(artist)} {colored(artist.get_facecolor())} {numbers(box)}"
    elif isinstance(artist, collections.LineCollection):
        yield f"segments {shown(artist)} {colors(artist.get_colors())} {points(artist.get_segments())}"
    elif isinstance(artist, collections.PolyCollection):
        parts = [path.vertices for path in artist.get_paths()]
        yield f"area {shown(artist)} {colors(artist.get_facecolors())} {points(parts)}"
    elif isinstance(artist, collections.Collection):
        found = f"{type(artist).__name__} {shown(artist)} {colors(artist.get_facecolors())}"
        if artist.get_array() is not None:
            found += (
                f" values {numbers(np.ma.filled(np.ma.asarray(artist.get_array(), dtype=float), np.nan))}"
            )
            found += f" {artist.get_cmap().name} {numbers(artist.get_clim())}"
        shapes = [path.vertices for path in artist.get_paths()]
        found += f" faces {numbers(artist.get_facecolors())} shapes {points(shapes)}"
        yield f"{found} at {numbers(artist.get_offsets())}"
    elif isinstance(artist, text.Text):
        place = artist.xy if isinstance(artist, Annotation) else artist.get_position()
        if artist.get_text():
            look = f"{to_hex(artist.get_color())} {artist.get_fontsize():g} {artist.get_weight()}"
            yield f"words {artist.get_text()!r} {look} {artist.get_ha()} at {numbers(place)}"
    else:
        yield f"{type(artist).__name__}"


def points(parts: list[np.ndarray]) -> str:
    return numbers(np.concatenate(parts) if parts else [])


def legend_lines(legend: Legend) -> Iterator[str]:
    sizes = {words.get_fontsize() for words in legend.get_texts()}
    yield f"legend {legend.get_title().get_text()!r} {legend._ncols} across, {' '.join(map(short, sorted(sizes)))}"
    for handle, words in zip(legend.legend_handles, legend.get_texts(), strict=True):
        if isinstance(handle, Line2D):
            style = line_style(handle)
        elif isinstance(handle, patches.Patch):
            style = f"{colored(handle.get_facecolor())} {handle.get_hatch() or ''}"
        else:
            style = type(handle).__name__
        yield f"  {words.get_text()!r} {style}"


def line_style(line: Line2D) -> str:
    """Colour, dashes and marker of a line; whether its marker is hollow, and the line pale."""
    face = line.get_markerfacecolor()
    filled = "" if isinstance(face, str) and face == line.get_color() else f" filled {face}"
    alpha = "" if line.get_alpha() is None else f" alpha {line.get_alpha():g}"
    marker = "" if line.get_marker() == "None" else f" {line.get_marker()}{filled}"
    return f"{to_hex(line.get_color())} {dashes(line)}{marker}{alpha}"


def dashes(line: Line2D) -> str:
    _, pattern = getattr(line, "_unscaled_dash_pattern", (0, None))
    return (
        line.get_linestyle()
        if pattern is None
        else f"{line.get_linestyle()}{[float(one) for one in pattern]}"
    )


def shown(artist: mpl.artist.Artist) -> str:
    """The label (matplotlib's own, "_child3", is none), and the series that a page takes it for."""
    label = str(artist.get_label())
    series = (artist.get_gid() or "").rpartition(".")[0]  # without a number that counts matplotlib's parts
    return " ".join(filter(None, ["" if label.startswith("_") else repr(label), series]))


def colored(color: object) -> str:
    return to_hex(color, keep_alpha=True)  # bars and areas that lie over each other are pale


def colors(found: np.ndarray) -> str:
    return " ".join(dict.fromkeys(colored(one) for one in found))


def short(value: object) -> str:
    """A number with six digits, a word as it is."""
    try:
        return number(float(f"{float(value):.6g}"))
    except (TypeError, ValueError):
        return str(value)


def numbers(values: object) -> str:
    """Few numbers one by one; of many their count, range, sum and a sum weighted by place, without missing ones."""
    values = (
        np.ma.filled(np.ma.asarray(values), np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)
    )
    flat = values.ravel()
    if flat.dtype.kind not in "fiub":
        return f"[{', '.join(map(short, flat))}]"
    if flat.size <= WHOLE:
        return f"[{', '.join(map(short, flat.tolist()))}]"
    known = np.isfinite(flat.astype("float64"))
    there, at = flat[known].astype("float64"), np.flatnonzero(known)
    if not there.size:
        return f"({'x'.join(map(str, values.shape))}, none known)"
    sums = (there.min(), there.max(), there.sum(), (there * np.sqrt(1 + at)).sum())
    return f"({'x'.join(map(str, values.shape))}, {there.size} known: {' '.join(map(short, sums))})"

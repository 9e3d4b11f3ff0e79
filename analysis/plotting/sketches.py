"""Diagrams of mixers as rows of boxes from the input down to the output.

↻ marks a state that is carried from token to token.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from analysis.plotting.masks import CHOSEN, RECENT, SUMMARY
from analysis.plotting.style import INK

Place = tuple[float, float]


class Box(NamedTuple):
    """One box of a diagram. ``group``: coloured as that group of `analysis.plotting.masks`, else as the mixer."""

    text: str
    group: int | None = None


def _row(*texts: str) -> tuple[Box, ...]:
    return tuple(Box(text) for text in texts)


X, Y = _row("x"), _row("y")
QKV = _row("q", "k", "v")

PATHS: dict[str, tuple[tuple[Box, ...], ...]] = {
    "causal": (X, QKV, _row("softmax over s ≤ t"), Y),
    "window": (X, QKV, _row("softmax, last w tokens"), Y),
    "timeline": (
        X,
        _row("router", "q", "k", "v"),
        (Box("line 1", 0), Box("line 2", 1), Box("line 3", 2)),
        _row("softmax in each"),
        _row("× routing weight"),
        Y,
    ),
    "topk": (X, _row("indexer", "q", "k", "v"), _row("top k of the scores"), _row("softmax over these"), Y),
    "blocks": (
        X,
        _row("q", "k, v: three"),
        (Box("all", SUMMARY), Box("chosen", CHOSEN), Box("last w", RECENT)),
        _row("gates"),
        Y,
    ),
    "recurrent": (X, _row("q", "k", "v", "gates"), _row("S: decay, write ↻"), _row("read Sᵀq"), Y),
    "convolution": (X, _row("B", "h", "C"), _row("B ⊙ h"), _row("convolution"), _row("⊙ C"), Y),
    "fading": (X, QKV, _row("softmax, forgetting"), Y),
    "none": (X, Y),
    "memories": (
        X,
        _row("router", "q", "k, v, gates"),
        (Box("S₁ ↻", 0), Box("S₂ ↻", 1), Box("S₃ ↻", 2)),
        _row("weighted sum of reads"),
        Y,
    ),
}
"""By the mask of a block; a block may bring a sketch of its own."""

GROUPS = 3
"""Shades that groups of cells and boxes can have."""

GAP, TALL, LETTER = 0.03, 0.1, 0.048
"""Between boxes of a row, a box's height, a letter's width; as shares of the axes."""

ARROW = {
    "arrowstyle": "-|>",
    "mutation_scale": 5,
    "linewidth": 0.7,
    "color": "#8a8f98",
    "shrinkA": 0,
    "shrinkB": 0,
}


def path(mask: str, own: object = None) -> tuple[tuple[Box, ...], ...]:
    """Return the rows of boxes of a block: from its own sketch, else from its mask.

    own: JSON or the parsed list, [["x"], ["q", "k", "v"], [["line 1", 0], ["line 2", 1]], ["y"]]: rows of texts or
    of [text, group], the group None for the mixer's own colour; anything else is ignored.
    """
    try:
        rows = json.loads(own) if isinstance(own, str) else own
        found = tuple(tuple(_box(box) for box in row) for row in rows)
    except (TypeError, ValueError):
        found = ()
    whole = len(found) > 1 and all(found)
    return found if whole else PATHS.get(mask, PATHS["none"])


def _box(box: object) -> Box:
    """A box of text, or of [text, group]. Raises TypeError or ValueError for anything else."""
    if isinstance(box, str):
        return Box(box)
    text, group = box
    if not isinstance(text, str) or group not in (None, *range(GROUPS)):
        raise ValueError(f"{box!r} is no text and group")
    return Box(text, group)


def sketch(axes: Axes, rows: tuple[tuple[Box, ...], ...], color: str, groups: list[str]) -> None:
    """Draw ``rows`` of boxes into ``axes`` (0 to 1 both ways); ``groups``: colour by group."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    above: list[Place] = []
    for place, boxes in enumerate(rows):
        y = 0.94 - 0.88 * place / (len(rows) - 1)
        centres = _centres(boxes)
        for box, (x, width) in zip(boxes, centres, strict=True):
            edge = color if box.group is None else groups[box.group]
            _draw_box(axes, box, (x, y), width, edge)
        here = [(x, y) for x, _ in centres]
        _connect(axes, above, here)
        above = here


def _centres(boxes: tuple[Box, ...]) -> list[tuple[float, float]]:
    """Centre and width of each box, widths by the length of their texts."""
    widths = [max(0.13, LETTER * len(box.text) + 0.03) for box in boxes]
    scale = min(1.0, (1 - GAP * (len(boxes) + 1)) / sum(widths))
    widths = [width * scale for width in widths]
    left, found = (1 - sum(widths) - GAP * (len(boxes) - 1)) / 2, []
    for width in widths:
        found.append((left + width / 2, width))
        left += width + GAP
    return found


def _draw_box(axes: Axes, box: Box, centre: Place, width: float, color: str) -> None:
    x, y = centre
    style = "round,pad=0,rounding_size=0.03"
    corner = (x - width / 2, y - TALL / 2)
    axes.add_patch(
        FancyBboxPatch(corner, width, TALL, boxstyle=style, facecolor="white", edgecolor=color, linewidth=1.2)
    )
    axes.text(x, y - 0.004, box.text, fontsize=7, ha="center", va="center", color=INK)


def _connect(axes: Axes, above: list[Place], below: list[Place]) -> None:
    """Draw arrows from row to row: one to all, all to one, or pairwise where both rows have several boxes."""
    for x0, y0 in above:
        for x1, y1 in below:
            axes.add_patch(FancyArrowPatch((x0, y0 - TALL / 2), (x1, y1 + TALL / 2), **ARROW))

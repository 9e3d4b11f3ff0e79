"""Diagrams of mixers: rows of boxes from the input down to the output, and schematic attention masks.

↻ marks a state that is carried from token to token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from analysis.plotting.style import INK

# Masks of sixteen tokens, one for every kind of mixer.
#
# A pattern gives, for query t and key s ≤ t, a strength in [0, 1] (0: out of reach) and the group of the cell (a
# timeline, a memory, a branch; 0 where there is only one).

Cell = tuple[float, int]
TOKENS = 16
WINDOW, KERNEL, KEYS, BLOCK = 5, 3, 4, 2
TIMELINES = (0, 1, 0, 2, 1, 1, 0, 2, 2, 0, 1, 2, 0, 1, 2, 0)
"""Which of three timelines each token was sent to."""
DECAY = 0.8
RECENT, CHOSEN, SUMMARY = range(3)
"""Groups of `blocks`."""


def causal(t: int, s: int) -> Cell:
    """Return a full causal mask: every token up to the query."""
    return 1.0, 0


def fading(t: int, s: int) -> Cell:
    """Return a causal mask whose strength decays with distance, as in recurrent states."""
    return DECAY ** (t - s), 0


def window(t: int, s: int) -> Cell:
    """Return a sliding-window mask: the last WINDOW tokens, the query's own included."""
    return float(t - s < WINDOW), 0


def convolution(t: int, s: int) -> Cell:
    """Return the mask of a causal convolution: the last KERNEL tokens, the query's own included."""
    return float(t - s < KERNEL), 0


def timeline(t: int, s: int) -> Cell:
    """Return the mask of routed timelines: tokens of the query's timeline; the group is the timeline."""
    return float(TIMELINES[s] == TIMELINES[t]), TIMELINES[t]


def memories(t: int, s: int) -> Cell:
    """Return a decaying mask over the tokens in the query's memory; the group is the memory."""
    reach, memory = timeline(t, s)
    steps = sum(TIMELINES[token] == memory for token in range(s + 1, t + 1))
    return reach * DECAY**steps, memory


def topk(t: int, s: int) -> Cell:
    """Return a top-k mask: the KEYS tokens with the highest (made-up) score."""
    chosen = sorted(range(t + 1), key=lambda key: _score(t, key), reverse=True)[:KEYS]
    return float(s in chosen), 0


def _score(t: int, s: int) -> float:
    return 20 * (s == t) + (5 * s * s + 3 * s * t + 7 * t) % 17


def blocks(t: int, s: int) -> Cell:
    """Return a block-sparse mask: summaries of earlier blocks, three whole blocks, the last WINDOW tokens."""
    block, query_block = s // BLOCK, t // BLOCK
    if t - s < WINDOW:
        return 1.0, RECENT
    chosen = (5 * t // BLOCK + 2) % max(1, query_block - 1)
    return (1.0, CHOSEN) if block in (0, query_block, chosen) else (1.0, SUMMARY)


def nothing(t: int, s: int) -> Cell:
    """Return a mask of the query's own token alone."""
    return float(s == t), 0


PATTERNS: dict[str, Callable[[int, int], Cell]] = {
    "causal": causal,
    "window": window,
    "timeline": timeline,
    "topk": topk,
    "blocks": blocks,
    "recurrent": fading,
    "convolution": convolution,
    "none": nothing,
    "fading": fading,
    "memories": memories,
}
"""By the mask of a block."""


def cells(mask: str) -> list[tuple[int, int, float, int]]:
    """Return (query, key, strength, group) for every key s ≤ t of a mask; an unknown mask is "none"."""
    pattern = PATTERNS.get(mask, nothing)
    return [(t, s, *pattern(t, s)) for t in range(TOKENS) for s in range(t + 1)]


# Diagrams.

Place = tuple[float, float]


class Box(NamedTuple):
    """One box of a diagram. ``group``: coloured as that group of `analysis.plotting.sketches`, else as the mixer."""

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


def path(mask: str, diagonal: object = None) -> tuple[tuple[Box, ...], ...]:
    """Return the rows of boxes of a block: from its own sketch, else from its mask.

    own: JSON or the parsed list, [["x"], ["q", "k", "v"], [["line 1", 0], ["line 2", 1]], ["y"]]: rows of texts or
    of [text, group], the group None for the mixer's own colour; anything else is ignored.
    """
    try:
        rows = json.loads(diagonal) if isinstance(diagonal, str) else diagonal
        boxes = tuple(tuple(_box(box) for box in row) for row in rows)
    except (TypeError, ValueError):
        boxes = ()
    complete = len(boxes) > 1 and all(boxes)
    return boxes if complete else PATHS.get(mask, PATHS["none"])


def _box(box: object) -> Box:
    """A box of text, or of [text, group]. Raises TypeError or ValueError for anything else."""
    if isinstance(box, str):
        return Box(box)
    text, group = box
    if not isinstance(text, str) or group not in (None, *range(GROUPS)):
        raise ValueError(f"{box!r} is not a text and a group")
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
    left, centres = (1 - sum(widths) - GAP * (len(boxes) - 1)) / 2, []
    for width in widths:
        centres.append((left + width / 2, width))
        left += width + GAP
    return centres


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

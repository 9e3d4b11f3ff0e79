"""Schematic attention masks of sixteen tokens, one for every kind of mixer.

A pattern gives, for query t and key s ≤ t, a strength in [0, 1] (0: out of reach) and the group that the cell belongs
to (a timeline, a memory, a branch; 0 where there is one only).
"""

from __future__ import annotations

from collections.abc import Callable

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
    block, own = s // BLOCK, t // BLOCK
    if t - s < WINDOW:
        return 1.0, RECENT
    chosen = (5 * t // BLOCK + 2) % max(1, own - 1)
    return (1.0, CHOSEN) if block in (0, own, chosen) else (1.0, SUMMARY)


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

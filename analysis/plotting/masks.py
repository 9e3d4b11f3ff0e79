"""Which tokens may attend to which, as a drawing of sixteen tokens: schematic patterns of every kind of mixer.

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
    """Every token up to the query."""
    return 1.0, 0


def fading(t: int, s: int) -> Cell:
    """Every token up to the query, the less the older it is: a state that forgets, or attention that does."""
    return DECAY ** (t - s), 0


def window(t: int, s: int) -> Cell:
    """The last WINDOW tokens, the query's own included."""
    return float(t - s < WINDOW), 0


def convolution(t: int, s: int) -> Cell:
    """The last KERNEL tokens, the query's own included."""
    return float(t - s < KERNEL), 0


def timeline(t: int, s: int) -> Cell:
    """Tokens of the query's timeline; the group is the timeline."""
    return float(TIMELINES[s] == TIMELINES[t]), TIMELINES[t]


def memories(t: int, s: int) -> Cell:
    """Fading, among the tokens that wrote into the memory that the query reads; the group is the memory."""
    reach, memory = timeline(t, s)
    steps = sum(TIMELINES[token] == memory for token in range(s + 1, t + 1))
    return reach * DECAY**steps, memory


def topk(t: int, s: int) -> Cell:
    """The KEYS tokens with the highest score, scattered; the score stands for the indexer's."""
    chosen = sorted(range(t + 1), key=lambda key: _score(t, key), reverse=True)[:KEYS]
    return float(s in chosen), 0


def _score(t: int, s: int) -> float:
    return 20 * (s == t) + (5 * s * s + 3 * s * t + 7 * t) % 17


def blocks(t: int, s: int) -> Cell:
    """Summaries of all earlier blocks; whole blocks, the first, the own and one more; the last WINDOW tokens."""
    block, own = s // BLOCK, t // BLOCK
    if t - s < WINDOW:
        return 1.0, RECENT
    chosen = (5 * t // BLOCK + 2) % max(1, own - 1)
    return (1.0, CHOSEN) if block in (0, own, chosen) else (1.0, SUMMARY)


def nothing(t: int, s: int) -> Cell:
    """The query's own token alone."""
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
    """(query, key, strength, group) for every key s ≤ t; an unknown mask draws as "none" does."""
    pattern = PATTERNS.get(mask, nothing)
    return [(t, s, *pattern(t, s)) for t in range(TOKENS) for s in range(t + 1)]

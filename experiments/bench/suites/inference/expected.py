"""Expected times of calls, from the rows of shorter contexts."""

from __future__ import annotations

import math
from typing import Any

GUESS = 1.25
"""The power by which a time is taken to grow from a single row: short contexts are mostly projections."""


def expected_ms(rows: list[dict[str, Any]], ratio: str | None, length: int, most: float) -> float | None:
    """Milliseconds of a call at a length, by the growth of the last two rows: at most with the power `most` of it.

    rows: timed ones of one model at shorter contexts; ratio: the column of what the model is compared with, whose
    time it is then. Infinite for what was left out of the last row; None where there are no rows.
    """
    rows = sorted(rows, key=lambda row: int(row["tokens"]))[-2:]
    times = [_ms(row, ratio) for row in rows]
    if not times or times[-1] is None:
        return math.inf if times else None
    last, growth = int(rows[-1]["tokens"]), GUESS
    if len(times) == 2 and times[0] is not None:
        growth = max(0.0, math.log(times[1] / times[0]) / math.log(last / int(rows[0]["tokens"])))
    return times[-1] * (length / last) ** min(growth, most)


def _ms(row: dict[str, Any], ratio: str | None) -> float | None:
    own = float(row["milliseconds_median"])
    if ratio is None:
        return own
    return own * float(row[ratio]) if row.get(ratio) else None

"""Findings of a verdict: sentences that say in what a block is better, worse or equal, each from a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from analysis.block_verdict.verdict_tables import VerdictTables

BETTER, WORSE, LEAD, EQUAL, UNLEARNED = "better", "worse", "lead", "equal", "unlearned"
CLOSE = 0.01
"""Counts that differ by less, as a share, are called equal."""


class Finding(NamedTuple):
    """A sentence, and peer, the model compared with.

    side: BETTER, WORSE, LEAD (shown, but no verdict), EQUAL, or UNLEARNED (of a task that neither has learned).
    """

    side: str
    peer: str
    text: str


def count_findings(tables: VerdictTables) -> Iterator[Finding]:
    """Yield what was counted: FLOPs of a token's forward pass, and bytes of decode state, at every length."""
    for peer in tables.peers:
        for tokens, rows in tables.sizes.groupby("tokens"):
            by = rows.set_index("model")
            for column, what in (
                ("flops_forward", "FLOPs of a token's forward pass"),
                ("state_bytes", "Decode state"),
            ):
                ratio = by[column][tables.name] / by[column][peer]
                side = EQUAL if abs(ratio - 1) <= CLOSE else BETTER if ratio < 1 else WORSE
                told = f"equal within {CLOSE:.0%}" if side == EQUAL else f"{ratio:.3g} times {peer}'s"
                yield Finding(side, peer, f"{what} at {tokens:,} tokens: {told}, counted.")


def speed_findings(tables: VerdictTables) -> Iterator[Finding]:
    """Yield the times of a training step, of prefill and of decoding; equal where the interval holds 1."""
    own = tables.speeds[tables.speeds["model"] == tables.name]
    for row in own.itertuples():
        side = EQUAL if row.ratio_low <= 1 <= row.ratio_high else BETTER if row.ratio > 1 else WORSE
        verb = {BETTER: "faster", WORSE: "slower", EQUAL: "not shown to differ in speed"}[side]
        yield Finding(
            side,
            row.peer,
            f"{row.mode.capitalize()} at {row.tokens:,} tokens: {verb}, {row.ratio:.2f} times {row.peer}'s speed (95 % "
            f"interval {_end(row.ratio_low)} to {_end(row.ratio_high)}).",
        )


def _end(ratio: float) -> str:
    """The end of an interval, with as many digits as show on which side of 1 it is."""
    digits = next((n for n in (2, 3, 4) if round(ratio, n) != 1 or ratio == 1), 5)
    return f"{ratio:.{digits}f}"


def contract_sentence(tables: VerdictTables) -> str:
    """Return the sentence on the contracts."""
    rows, broken = tables.contracts, tables.broken_contracts
    if rows.empty:
        return "Its contracts were not checked yet."
    if broken.empty:
        return f"{tables.name} keeps all {len(rows)} contracts ({rows['cases'].sum()} cases)."
    return (
        f"{tables.name} is condemned: it breaks {len(broken)} of {len(rows)} contracts, so that its losses "
        "would not mean what they seem to, and nothing was trained."
    )


def broken_sentences(broken: pd.DataFrame) -> list[str]:
    """Return a sentence for every broken contract, with its first failure."""
    return [
        f"Broken: {row.contract} ({row.failed} of {row.cases} cases; {row.case}: {row.reason})"
        for row in broken.itertuples()
    ]

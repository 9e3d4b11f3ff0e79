"""The columns of the table of suite=inference, and a row as text."""

from __future__ import annotations

from typing import Any

from experiments.bench import timing

FEWEST_PAIRS = 3
"""Of fewer, a range says nothing of the median; `timing.bootstrap_interval` says what it covers from here on."""

RATIOS = ("ratio", "ratio_transformer", "ratio_forward", "ratio_shortest")

COLUMNS = [
    *("suite", "model", "color", "backend", "mode", "device", "precision", "d_model", "depth", "tokens"),
    *("batch", "repeats", "milliseconds_median", "milliseconds_low", "milliseconds_high"),
    *("tokens_per_second", "state_bytes", "peer"),
    *(f"{ratio}{end}" for ratio in RATIOS for end in ("", "_low", "_high")),
    *("note", "machine", "torch", "commit"),
]


def compared(ratio: str, other: list[float], own: list[float]) -> dict[str, float]:
    """The columns of a ratio: its median, and the ends of its interval where there are pairs enough for one."""
    middle, low, high = timing.ratios(other, own)
    return (
        {ratio: middle}
        if len(own) < FEWEST_PAIRS
        else {ratio: middle, f"{ratio}_low": low, f"{ratio}_high": high}
    )


def format_row(row: dict[str, Any]) -> str:
    """A row as a line for the terminal."""
    theirs = row["backend"] == "transformers"
    name = f"{row['model']} in transformers" if theirs else row["model"]
    start = f"{row['tokens']:>7} tokens x {row['batch']}  {row['mode']:<8} {name:<27}"
    if row.get("note"):
        return f"{start} {row['note']}"
    others = {
        "ratio_transformer": "transformer",
        "ratio_forward": "own forward",
        "ratio_shortest": "own shortest",
        "ratio": row.get("peer"),
    }
    ratios = {name: row[ratio] for ratio, name in others.items() if row.get(ratio) and not theirs}
    return (
        f"{start}{row['milliseconds_median']:10.2f} ms ({row['milliseconds_low']:.2f} to "
        f"{row['milliseconds_high']:.2f}){row['tokens_per_second']:8.0f} tokens/s"
        f"{row['state_bytes'] / 2**20:9.2f} MiB  "
        + ", ".join(f"{ratio:.2f}x {name}" for name, ratio in ratios.items())
    )

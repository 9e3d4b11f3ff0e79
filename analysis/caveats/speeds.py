"""Caveats of training speeds: load of the machine while timing, and impossible MFU values."""

from __future__ import annotations

import pandas as pd

from analysis.units import engineering, listing, whole

PEAKS_APART = 0.1
"""Two measurements of one machine's peak that differ by more than this share mean that the machine was busy."""

MACHINE = ("cpu", "gpu", "cores", "threads", "capability")


def above_peak(runs: pd.DataFrame) -> pd.Series:
    """Return whether each run did more FLOP/s than its assumed peak: bool by row."""
    rate = runs["tokens_per_second"] * runs["flops_training"]
    return (rate > runs["mfu_peak_flops"]).fillna(False).astype("bool")


def conditions(runs: pd.DataFrame) -> str:
    """Return the load while each run trained, such as "2 cells at a time on 2 cores"."""
    known = runs.dropna(subset=["workers"])
    texts = [
        _load_text(*each) for each in known[["workers", "cores"]].drop_duplicates().itertuples(index=False)
    ]
    if len(known) < len(runs):
        texts.append("how many runs at a time was not recorded" + ("" if known.empty else " for some"))
    return listing(texts)


def _load_text(workers: int, cores: int) -> str:
    one = "1 core" if cores == 1 else f"{whole(cores)} cores"
    return f"one cell at a time on {one}" if workers == 1 else f"{workers} cells at a time on {one}"


def caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats of comparing speeds, one sentence each."""
    return [*_peaks(runs), *_shared_machine(runs)]


def _peaks(runs: pd.DataFrame) -> list[str]:
    found = []
    faster = runs[above_peak(runs)]
    if len(faster):
        found.append(
            f"above the peak: {_named(faster)} did more FLOP/s than the peak that was measured, on a busy machine; "
            "no MFU is shown for them."
        )
    spread = runs.groupby(list(MACHINE), dropna=False)["mfu_peak_flops"].agg(["min", "max"])
    apart = spread[spread["max"] > (1 + PEAKS_APART) * spread["min"]]
    found += [
        f"the peak of one machine was measured as {engineering(row['min'])} to {engineering(row['max'])} FLOP/s, while "
        "other things ran: MFU of these runs cannot be compared."
        for _, row in apart.iterrows()
    ]
    return found


def _shared_machine(runs: pd.DataFrame) -> list[str]:
    """Caveats about runs timed while others ran: several workers, or a load more than one core above their own."""
    found = []
    if (runs["workers"] > 1).any():
        found.append(
            f"speeds were measured beside other cells ({conditions(runs)}): they are no speeds of a machine alone."
        )
    unknown = int(runs["workers"].isna().sum())
    if unknown:
        found.append(
            f"speeds of {unknown} of {len(runs)} runs may have been measured beside others: how many trained at a time "
            "was not recorded."
        )
    own = runs["workers"].astype("float64") * runs["threads"].astype("float64")
    busy = runs[runs["load"] > own + 1]
    if len(busy):
        found.append(
            f"other processes took the machine as well while {_named(busy)} trained (load {busy['load'].min():.1f} to "
            f"{busy['load'].max():.1f}): speeds are too low."
        )
    return found


def _named(runs: pd.DataFrame) -> str:
    return listing((f"{row.label} seed {whole(row.seed)}" for row in runs.itertuples()), limit=6)

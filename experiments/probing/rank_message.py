"""The rank of factorised streams that a probed run's energies call for, in words."""

from __future__ import annotations

import contextlib
from pathlib import Path

from experiments.probing import probe_tables
from zoo.probes.probe_row import Row
from zoo.probes.stream_rank import smallest_rank


def stream_rank(run: Path, energy: float) -> str:
    """Say how many directions hold a share of a run's stream energy between layers; "" for one stream or no table."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = [Row(*values[1:-1]) for values in probe_tables.read(run, "measures")]  # without step and split
        if found := smallest_rank(rows, energy):
            r, n = found
            return f"{energy:.6g} of the energy of its {n} streams between layers is in {r} directions"
    return ""

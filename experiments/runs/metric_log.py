"""The metric rows of a run: metrics.csv in its folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from zoo.files import write_atomic

METRIC_COLUMNS = [
    "step",
    "tokens",
    "split",
    "loss",
    "aux_loss",
    "perplexity",
    "lr",
    "grad_norm",
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]
WALL_CLOCK_COLUMNS = [
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]  # in which two equal runs may differ


class MetricLog:
    """The metric rows of one run. Columns are fixed when the file is made; `extra` are those of auxiliary losses."""

    def __init__(self, path: Path, extra: list[str]) -> None:
        self.path = path
        self.columns = METRIC_COLUMNS + sorted(extra)

    def cut(self, step: int) -> None:
        """Drop the rows after `step`, that of the checkpoint to resume from, and a torn last line."""
        kept = [row for row in read_metrics(self.path) if row["step"].isdigit() and int(row["step"]) <= step]
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        write_atomic(self.path, out.getvalue())

    def append(self, row: dict[str, Any]) -> None:
        """Add one row; numbers are written so that they read back exactly."""
        line = io.StringIO()
        csv.DictWriter(line, self.columns, lineterminator="\n", restval="").writerow(row)
        with open(self.path, "a", newline="") as file:
            file.write(line.getvalue())


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics file, as text; none if there is no file."""
    if not path.is_file():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    return [row for row in rows if None not in row and None not in row.values()]

"""Metric rows: one CSV file a run, appended while it trains and cut back to the checkpoint when it resumes."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from zoo.files import write_atomic

COLUMNS = [
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
WALL_CLOCK = ["seconds", "tokens_per_second", "mfu", "peak_memory_bytes"]  # what two equal runs may differ in


class MetricLog:
    """The metric rows of one run. Columns are fixed when the file is made; `extra` are those of auxiliary losses."""

    def __init__(self, path: Path, extra: list[str]) -> None:
        self.path = path
        self.columns = COLUMNS + sorted(extra)

    def cut(self, step: int) -> None:
        """Keep the rows up to and with `step`: what the checkpoint of that step knows. A torn last line goes."""
        kept = [row for row in read(self.path) if row["step"].isdigit() and int(row["step"]) <= step]
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


def read(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics file, as text; none if there is no file."""
    if not path.is_file():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    return [row for row in rows if None not in row and None not in row.values()]

"""Tables in a run's folder whose rows are of a split: those of one split can be written anew without the others."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.files import write_atomic


def write_splits(path: Path, columns: Sequence[str], scored: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Write the rows of these splits, atomically; those of other splits stay.

    columns: "split", then those of the rows. Floats are written so that they read back exactly.
    """
    out = io.StringIO()
    kept = _rows(path, len(columns)) if path.is_file() else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(row for row in kept if row[0] not in scored)
    for split, rows in scored.items():
        writer.writerows([split, *row] for row in rows)
    write_atomic(path, out.getvalue())


def _rows(path: Path, columns: int) -> list[list[str]]:
    return [row for row in list(csv.reader(io.StringIO(path.read_text())))[1:] if len(row) == columns]

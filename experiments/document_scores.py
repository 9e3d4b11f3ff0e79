"""Scores by document: RUN/documents.csv, from which the uncertainty of the test text itself is computed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from zoo.files import write_atomic

FILE = "documents.csv"
COLUMNS = ("split", "document", "tokens", "nats")


def by_document(losses: np.ndarray, tokens: np.ndarray, bos_id: int) -> np.ndarray:
    """Tokens scored and their sum of −ln p by document, float64 [documents, 2].

    losses: −ln p of tokens 1 … N−1, in order; tokens: [N]. A document begins at its separator; the separator that ends
    it counts to it, for it is what the model predicts there.
    """
    document = np.cumsum(tokens[:-1] == bos_id) - 1
    document = np.maximum(document, 0)  # text before the first separator
    number = int(document[-1]) + 1
    counts = np.bincount(document, minlength=number)
    return np.stack([counts, np.bincount(document, losses, minlength=number)], axis=1)


def write_documents(folder: Path, scored: dict[str, np.ndarray]) -> None:
    """Write the rows of these splits (`by_document`), atomically; those of other splits stay.

    Columns: split; document, from 0 in the order of the split; tokens scored; nats, the sum of −ln p over them.
    """
    path, out = folder / FILE, io.StringIO()
    kept = _rows(path) if path.is_file() else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row for row in kept if row[0] not in scored)
    for split, rows in scored.items():
        writer.writerows(
            [split, place, int(tokens), repr(nats)] for place, (tokens, nats) in enumerate(rows.tolist())
        )
    write_atomic(path, out.getvalue())


def _rows(path: Path) -> list[list[str]]:
    return [row for row in list(csv.reader(io.StringIO(path.read_text())))[1:] if len(row) == len(COLUMNS)]

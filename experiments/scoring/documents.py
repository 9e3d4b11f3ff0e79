"""Scores by document: RUN/documents.csv, from which the uncertainty of the test text itself is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.runs.split_table import write_splits

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
    rows = {
        split: [(place, int(tokens), nats) for place, (tokens, nats) in enumerate(found.tolist())]
        for split, found in scored.items()
    }
    write_splits(folder / FILE, COLUMNS, rows)

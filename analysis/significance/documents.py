"""Uncertainty that the choice of test documents adds to a difference between two models: a bootstrap over documents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DRAWS = 2000
_BLOCK = 64


class DocumentDifference(NamedTuple):
    """A difference in nats a token between two models on one text; low, high: 95 % interval over documents.

    error: its standard error; documents: how many have tokens.
    """

    difference: float
    error: float
    low: float
    high: float
    documents: int


def over_documents(
    one: np.ndarray, other: np.ndarray, tokens: np.ndarray, confidence: float = 0.95, draws: int = DRAWS
) -> DocumentDifference:
    """Return the difference of losses, Σ one/Σ tokens - Σ other/Σ tokens, with its interval if documents were others.

    Documents are drawn with replacement, for both models the same (paired), and the half-width is e times the
    quantile of |D* - D|/e* over the draws: symmetric, as one tail alone is too short where lengths are skewed. The
    error of a ratio, e = √(Σ(d_j - D·t_j)²/(1 - t_j/T))/T with T = Σt_j, allows for what a long document pulls D to
    itself. Seeds are held: it is beside their interval, not in it.
    one, other: sums of -ln p by document, [J]; means over seeds where there are several. tokens: scored, [J].
    Fewer than two documents with tokens give NaN. The generator is seeded: equal input gives equal output.
    Source: Hall 1988 (symmetric bootstrap-t); MacKinnon and White 1985 (HC2, the error).
    """
    full = tokens > 0
    gap, tokens = (np.asarray(one, "float64") - other)[full], np.asarray(tokens, "float64")[full]
    number = len(tokens)
    if number < 2:
        return DocumentDifference(gap.sum() / tokens.sum() if number else np.nan, *[np.nan] * 3, number)
    difference, error = (float(x[0]) for x in _ratio(gap[None], tokens[None]))
    generator = np.random.default_rng(0)
    statistics = []
    for begin in range(0, draws, _BLOCK):
        drawn = generator.integers(number, size=(min(_BLOCK, draws - begin), number))
        again, errors = _ratio(gap[drawn], tokens[drawn])
        with np.errstate(invalid="ignore", divide="ignore"):
            statistics.append((again - difference) / errors)
    known = np.abs(np.concatenate(statistics))
    known = known[np.isfinite(known)]
    half_width = error * np.quantile(known, confidence) if len(known) else np.nan
    return DocumentDifference(difference, error, difference - half_width, difference + half_width, number)


def _ratio(gap: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ gap/Σ tokens and its standard error, by row of [draws, documents]."""
    total = tokens.sum(1, keepdims=True)
    difference = gap.sum(1, keepdims=True) / total
    off = gap - difference * tokens
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt((off**2 / (1 - tokens / total)).sum(1)) / total[:, 0]
    return difference[:, 0], error

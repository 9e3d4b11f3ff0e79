"""Learning rates out of a published study: what job=compare selected for each of its models."""

from __future__ import annotations

import csv
import functools

from experiments.system.paths import PUBLISHED, SELECTION
from zoo.errors import UserError, unknown


def studied_rate(study: str, model: str) -> float:
    """The rate that a study of results/published selected for a model, named as the study names it.

    Raises UserError for a study that is not there or selected nothing, and for a model that it did not have.
    """
    rates = _rates(study)
    if model not in rates:
        raise UserError(
            f"optim.lr_study={study} has no learning rate for {model}, only for {', '.join(rates)}; give "
            "optim.lr_study=null and a rate, optim.lr=..."
        )
    return rates[model]


@functools.lru_cache
def _rates(study: str) -> dict[str, float]:
    """Model -> its rate; read once a process."""
    known = sorted(path.parent.name for path in PUBLISHED.glob(f"*/{SELECTION}"))
    if study not in known:
        raise unknown("optim.lr_study (a folder of results/published with a selection)", study, known)
    with (PUBLISHED / study / SELECTION).open(encoding="utf-8", newline="") as rows:
        return {row["model"]: float(row["lr"]) for row in csv.DictReader(rows) if row["chosen"] == "True"}

"""Headlines on learning in context: the mesa layer against the delta rule."""

from collections.abc import Iterator

from analysis.evidence.headlines.differences import accuracy, ahead, study_of
from analysis.evidence.headlines.headline_entries import Headline
from analysis.evidence.ledger.entries import Evidence
from analysis.evidence.ledger.rules import Check, Lack

DELTA = "kda_pure"
MESA = ("mesanet cg_steps=5", "mesanet cg_steps=10", "mesanet")
"""At 5, 10 and 30 steps, of which the last is the default."""


def solver(evidence: Evidence) -> Iterator[Check | Lack]:
    """Yield whether the mesa layer at 30 steps is ahead of the delta rule, and the accuracies at 5, 10 and 30."""
    study = study_of(evidence, "mesa_regression")
    yield from ahead(study, MESA[-1], DELTA)
    yield from (accuracy(study, model) for model in (*MESA, DELTA))


HEADLINES = (
    Headline(
        13,
        "Does solving for the readout learn regression in context better than the delta rule?",
        "MesaNet (arXiv:2506.05233)",
        "the mesa layer, solved by 30 steps of conjugate gradients, is ahead of delta rules in context",
        "30 steps: more right answers by a twentieth or more, with the whole interval, than the delta rule",
        solver,
        config="mesa_regression",
        differs="6 dimensions, 14 points of bits, weights that are signs, outputs in 64 bins (paper: real-valued, "
        "squared loss); one layer of width 64; 2,000 steps",
    ),
)

"""Headlines on retrieval: sparse attention against full attention, and beyond the trained length."""

from collections.abc import Iterator

from analysis.evidence.headlines.differences import (
    Judge,
    accuracy,
    accuracy_at,
    ahead,
    at_length,
    level,
    study_of,
)
from analysis.evidence.headlines.headline_entries import Headline
from analysis.evidence.ledger.entries import Evidence
from analysis.evidence.ledger.rules import Check, Lack
from analysis.loading.tables import architectures

ORTHGSA = "orthgsa CG rope_base=1e+06 k_base=8 k_min=4 k_max=16"
FULL = "gated_conv CF rope_base=1e+06"
NSA = "gated_conv CN n_kv_heads=4 rope_base=1e+06 block_size=2 stride=1 select_size=2 n_select=5 window=2"
GSA = "gated_conv CG n_kv_heads=4 rope_base=1e+06 k_base=12 k_min=12 k_max=12 adaptive=none"
SETTING = "2 needles in 30 tokens, 12 of them read{} (paper: 64K); a gated convolution before one mixer; 1,200 steps"


def no_worse(model: str) -> Judge:
    """Make the judge of a sparse attention that is to lose no more than a gap to full attention."""

    def judge(evidence: Evidence) -> Iterator[Check | Lack]:
        study = study_of(evidence, "needle")
        yield from level(study, FULL, model)
        yield from (accuracy(study, one) for one in (model, FULL))

    return judge


def longer(evidence: Evidence) -> Iterator[Check | Lack]:
    """Yield whether OrthGSA is ahead of full attention at eight times the trained length, and accuracies by length."""
    study = study_of(evidence, "orthgsa_length")
    # The published runs were named when a preset did not say that it was in another pattern.
    before = ORTHGSA.replace(" CG", "")
    orthgsa = before if before in set(architectures(study.runs)) else ORTHGSA
    yield from ahead(at_length(study, 128), orthgsa, FULL, trained=study)
    yield from (accuracy(study, model) for model in (orthgsa, FULL))
    yield from (accuracy_at(study, model, tokens) for tokens in (32, 64, 128) for model in (orthgsa, FULL))


HEADLINES = (
    Headline(
        14,
        "Does NSA find needles as full attention does?",
        "NSA (arXiv:2502.11089)",
        "every needle found at 64K tokens",
        "at most a twentieth of the answers behind full attention, with the whole interval",
        no_worse(NSA),
        config="needle",
        differs=SETTING.format(
            " and a compressed token for each block of two, which together see the whole sequence"
        ),
    ),
    Headline(
        15,
        "Does gated sparse attention find needles as full attention does?",
        "OrthGSA document",
        "its indexer keeps the tokens that matter",
        "at most a twentieth of the answers behind full attention, with the whole interval",
        no_worse(GSA),
        config="needle",
        differs=SETTING.format(""),
    ),
    Headline(
        16,
        "Does OrthGSA recall at eight times the trained length what full attention loses?",
        "OrthGSA document",
        "OrthGSA extrapolates in length",
        "at 128 tokens after training at 16: more right answers by a twentieth or more, with the whole interval, than "
        "full attention",
        longer,
        config="orthgsa_length",
        differs="recall of 4 pairs in 16 tokens (document: language modelling, no lengths given); a gated convolution "
        "before one mixer; 1,200 steps",
    ),
)

"""Headlines on recall (MQAR): attention and recurrence, gates, memories, timelines, convolutions."""

from collections.abc import Iterator

from analysis.comparing.verdicts import LEARNED
from analysis.evidence.headlines.differences import accuracy, ahead, beats, level, study_of
from analysis.evidence.headlines.headline_entries import Headline
from analysis.evidence.ledger.entries import Evidence
from analysis.evidence.ledger.rules import TRAINING, Check, Lack

ZOOLOGY = "Zoology (arXiv:2312.04927)"
ATTENTION = "gated_conv CF rope_base=1e+06 qk_norm"
STATES = tuple(f"gated_conv CK head_width={width}" for width in (2, 8, 16))
MEMORIES = (
    "gated_conv CO n_heads=1 head_width=24 n_memories=3",
    "gated_conv CO n_heads=1 head_width=48 n_memories=1 top_k=1 no shared",
)
TIMELINES = ("gated_conv CS n_timelines=1 rope_base=1e+06", "gated_conv CS rope_base=1e+06")
RULE = "more right answers by a twentieth or more, with the whole interval"
SMALL = "16 tokens, 4 pairs, vocabulary 64 (paper: 64 to 512 tokens, 4 to 64 pairs, vocabulary 8,192)"


def closing(evidence: Evidence) -> Iterator[Check | Lack]:
    """Yield whether the largest state is within a gap of attention and ahead of the smallest; all accuracies.

    While the largest state has not learned the task, more steps may close the gap as well as a larger one.
    """
    study = study_of(evidence, "recall")
    largest = accuracy(study, STATES[-1])
    if largest.value >= LEARNED:
        yield from level(study, ATTENTION, STATES[-1])
    else:
        yield Lack(
            TRAINING,
            f"{STATES[-1]} has {largest.value:.0%} of the answers right in these steps: whether a larger state or more "
            "steps reach attention is open",
        )
    yield from ahead(study, STATES[-1], STATES[0])
    yield from (accuracy(study, model) for model in (ATTENTION, *STATES))


HEADLINES = (
    Headline(
        5,
        "Does attention recall what a recurrence with a small state cannot?",
        ZOOLOGY,
        "attention solves MQAR at every width, recurrences and convolutions need more state",
        f"attention: {RULE}, than a delta rule with a state of 2 × 2 numbers a head",
        beats("recall", ATTENTION, STATES[0]),
        config="recall",
        differs=f"{SMALL}; a gated convolution and one mixer of width 64 with SwiGLU between; 1,200 steps",
    ),
    Headline(
        6,
        "Does the gap in recall close as the state grows?",
        ZOOLOGY,
        "recall grows with the size of the state, to that of attention",
        "a delta rule with 16 × 16 numbers a head that has learned the task: at most a twentieth of the answers behind "
        "attention, and ahead of one with 2 × 2 by a twentieth or more, with whole intervals",
        closing,
        config="recall",
        differs=f"{SMALL}; states of 2 heads of 2 to 16 channels; 1,200 steps",
    ),
    Headline(
        7,
        "Does a decay per channel recall better than one per head?",
        "Kimi Linear (arXiv:2510.26692), section 5.1",
        "KDA learns MQAR faster and at longer lengths than Gated DeltaNet",
        f"KDA: {RULE}, than with one decay a head",
        beats("kimi_mqar", "kda_pure", "kda_pure decay=head"),
        config="kimi_mqar",
        differs="16 tokens and 4 pairs (paper: 256 to 2,048 tokens); 2 layers of width 64, all else of KDA equal; 300 "
        "steps",
    ),
    Headline(
        8,
        "Do several memories recall better than one of equal state?",
        "MoM (arXiv:2502.13685)",
        "a mixture of memories is ahead on recall, by less interference",
        f"three memories and a shared one of 24 × 24: {RULE}, than one of 48 × 48",
        beats("mom_recall", *MEMORIES),
        config="mom_recall",
        differs="16 tokens and 4 pairs of a synthetic task (paper: language models of 340M and more on texts); a gated "
        "convolution before one mixture; 1,200 steps",
    ),
    Headline(
        9,
        "Do timelines cost recall, as they separate a key from its question?",
        "HyperGraph Sparse Attention report",
        "no claim: attention within a timeline sees a share of the tokens",
        f"one timeline: {RULE}, than six",
        beats("hypergraph_recall", *TIMELINES),
        config="hypergraph_recall",
        differs="the report trains on text; 16 tokens and 4 pairs, a gated convolution before one mixer; 1,200 "
        "steps",
    ),
    Headline(
        10,
        "Do convolutions need a little attention to recall?",
        "LFM2 (Liquid AI)",
        "short convolutions with a few layers of attention; chosen by evaluation, recall among it",
        f"LFM2: {RULE}, than convolutions alone",
        beats("lfm2_recall", "lfm2", "conv_pure"),
        config="lfm2_recall",
        differs="a synthetic task of 16 tokens and 4 pairs; LFM2's first four layers at width 64; 300 steps",
    ),
)

"""Claims of the sheet of architectures: MLA, KDA, LFM2, PaTH and FoX, Mesa, MoM, NSA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from analysis.evidence.headlines.differences import GAP, ahead, study_of
from analysis.evidence.ledger.entries import Claim, Evidence, Missing, Part, row_check
from analysis.evidence.ledger.rules import GPU, Check, Lack, Needed, Remark, about, at_least, at_most

ROUNDING = 1e-10
LESS = 0.95
"""An error counts as less from a twentieth below the other's."""
INFERENCE_COMMAND = (
    "python run.py job=bench suite=inference model.d_model=256 model.n_heads=4 model.depth=6 bench.repeats=9 "
    "bench.lengths=[256,1024,2048,8192,32768] bench.budget_s=1200"
)
TRACKED = {"path_flip_flop": "the flip-flop language", "path_tracking": "swaps of five items"}
"""Headlines of PaTH, by configuration, and what they track."""
SHEET = "sheet of architectures"


def inference(evidence: Evidence, model: str, mode: str, tokens: int) -> pd.Series:
    """The row of inference.csv of a model's own decoding or prefill at batch 1.

    Raises Missing, with the command that measures it, where there is not one such row.
    """
    table = evidence.table("inference.csv", INFERENCE_COMMAND)
    chosen = (table["model"] == model) & (table["mode"] == mode) & (table["tokens"] == tokens)
    rows = table[chosen & (table["batch"] == 1) & (table["backend"] != "transformers")]
    if len(rows) != 1:
        raise Missing(
            f"inference.csv has {len(rows)} rows of {model}, {mode} of {tokens:,} tokens", INFERENCE_COMMAND
        )
    return rows.iloc[0]


def faster(evidence: Evidence, model: str, mode: str, tokens: int, needed: Needed | None) -> Check:
    """The transformer's time over a model's, with its interval."""
    row, columns = inference(evidence, model, mode, tokens), ("", "_low", "_high")
    names = tuple(f"ratio_transformer{each}" for each in columns)
    name = f"transformer's time over {model}'s, {mode} of {tokens:,} tokens"
    return row_check(name, row, names, needed, "inference.csv", unit="times", timed=True)


def latents(evidence: Evidence) -> Iterator[Part]:
    """Equality of the two forms; the share of the cache at DeepSeek-V2's sizes, and beside it at ours."""
    needed = {
        "absorbed against expanded": at_most(ROUNDING),
        "cache saved at DeepSeek-V2's sizes": at_least(0.93),
    }
    for check in evidence.checks(17, needed):
        yield check
        if check.name == "cache saved at reference size":
            yield Remark(
                "the cache has (d_c + d_R)/(2·H·d_h) of multi-head attention's bytes, so that sizes decide: at the "
                f"reference size {check.value:.1%} are saved",
                check,
            )


def kda(evidence: Evidence) -> Iterator[Part]:
    """Bytes and time that do not grow, two forms that agree, and an order that is seen without positions."""
    needed = {
        "state after 128K tokens over 1K, kda_pure": about(1.0, 0.0),
        "chunked against recurrent": at_most(ROUNDING),
        "change of the last output when two earlier tokens swap places, KDA": at_least(0.01),
        "change of the last output when two earlier tokens swap places, attention": at_most(ROUNDING),
    }
    yield from evidence.checks(18, needed)
    columns = ("ratio_shortest", "ratio_shortest_low", "ratio_shortest_high")
    row = inference(evidence, "kda_pure", "decode", 8192)
    name = "time of a step after 256 tokens over one after 8,192"
    yield row_check(name, row, columns, about(1.0, 0.2), "inference.csv", unit="times", timed=True)


def lfm2(evidence: Evidence) -> Iterator[Part]:
    """The layout, and times of prefill and decoding at three lengths."""
    yield from evidence.checks(19, {"share of layers": Needed(0.6, 0.7)})
    for mode in ("prefill", "decode"):
        for tokens in (256, 1024, 2048):
            yield faster(evidence, "lfm2", mode, tokens, at_least(1.0))


def states(evidence: Evidence) -> Iterator[Part]:
    """Yield what both can hold by construction, and what one trained layer of PaTH tracks beyond rotary positions."""
    yield from evidence.checks(20, {"PaTH": at_most(ROUNDING), "FoX": at_most(ROUNDING)})
    for config, task in TRACKED.items():
        for part in ahead(study_of(evidence, config), "path_fox no forget_gate", "transformer"):
            yield replace(part, name=f"{part.name}, {task}") if isinstance(part, Check) else part


def mesa(evidence: Evidence) -> Iterator[Part]:
    """The gradient of the objective at the readout, the solver's error, regression in context."""
    needed = {
        "gradient of the ridge objective": at_most(1e-12),
        "30 steps of conjugate gradients": at_most(1e-9),
        "error of in-context regression": at_most(1.0),
    }
    yield from evidence.checks(21, needed)


def memories(evidence: Evidence) -> Iterator[Part]:
    """Yield that unnamed memories stay as they are, and errors of reading beside those of one memory."""
    needed = {
        "largest change of a memory that no token names": about(0.0),
        "error of reading 64 pairs": at_most(LESS),
    }
    yield from evidence.checks(22, needed)


def branches(evidence: Evidence) -> Iterator[Part]:
    """Yield NSA's exact properties, and its decoding speed on a CPU, which decides nothing of a claim about GPUs."""
    needed = {"largest change before": at_most(ROUNDING), "all blocks selected": at_most(ROUNDING)}
    yield from evidence.checks(23, needed)
    for tokens in (1024, 2048):
        yield faster(evidence, "nsa", "decode", tokens, None)
    yield Lack(GPU, "its speed is one of kernels at 8K to 64K tokens on a GPU", "python run.py job=gpu")


CLAIMS = (
    Claim(
        17,
        "MLA's cache is a small fraction of multi-head attention's, and absorbing the projections changes nothing",
        SHEET,
        "about 93 % smaller",
        f"absorbed equals expanded to {ROUNDING:g} in fp64; at DeepSeek-V2's sizes, which the sheet's number is of, at "
        "least 93 % of the cache saved against multi-head attention with the same heads; the reference size is shown",
        latents,
        "pytest tests/zoo/test_mla.py",
        shows="cache saved at DeepSeek-V2's sizes",
    ),
    Claim(
        18,
        "KDA has a state of fixed size, costs O(T) and knows positions without rotary embeddings",
        SHEET,
        "fixed d_k × d_v, O(T), no RoPE",
        f"state bytes equal after 1K and 128K tokens; chunked equals recurrent to {ROUNDING:g}; a step's time within a "
        "fifth from 256 to 8,192 tokens; the output sees the order of earlier tokens",
        kda,
        f"{INFERENCE_COMMAND}; pytest tests/zoo/test_kda.py tests/kernels/delta_rule",
        shows="state after 128K tokens",
    ),
    Claim(
        19,
        "LFM2 is mostly short convolutions and faster than the transformer at prefill and decoding",
        SHEET,
        "60–70 % of the layers; faster",
        "share of 0.6 to 0.7; the transformer's time over LFM2's above 1 with its whole interval, on a CPU, for one "
        "sequence, at 256, 1,024 and 2,048 tokens, six layers of width 256",
        lfm2,
        INFERENCE_COMMAND,
        shows="transformer's time over lfm2's, prefill of 256",
    ),
    Claim(
        20,
        "PaTH tracks states, and FoX forgets",
        SHEET,
        "a product of Householder matrices, and of forget gates, along the path",
        f"by construction: an item's place after any number of swaps, and fⁿ, to {ROUNDING:g}; trained, one layer and "
        f"three seeds: PaTH's positions at least {GAP:.0%} of the answers ahead of rotary ones, in flip-flop and in "
        "swaps of five",
        states,
        "pytest tests/zoo/test_path_fox.py tests/kernels/path_attention; "
        + "; ".join(f"python run.py +experiment=papers headline={config}" for config in TRACKED),
    ),
    Claim(
        21,
        "The mesa layer is the optimal linear readout, and conjugate gradients approximate it",
        SHEET,
        "q* = (H + Λ)⁻¹q",
        "the gradient of the ridge objective vanishes at the layer's readout (1e-12); 30 steps within 1e-9 of the "
        "solve; regression in context with a smaller error than the delta rule's",
        mesa,
        "pytest tests/kernels/mesa",
    ),
    Claim(
        22,
        "Memories that a token does not use stay as they are, and several interfere less than one of equal state",
        SHEET,
        "M_t = M_{t−1} for inactive memories",
        f"no change at all; the error of reading back random pairs at most {LESS:g} of one memory's, of the same key "
        "width and of equal state",
        memories,
        "pytest tests/kernels/memory_mixture tests/zoo/test_mom.py",
    ),
    Claim(
        23,
        "NSA is a gated sum of three causal branches, and faster than full attention",
        SHEET,
        "compression, selection, window",
        f"no output before a changed token changes, and with all blocks selected it is full attention, to "
        f"{ROUNDING:g}; speed: on a GPU",
        branches,
        "pytest tests/zoo/test_nsa.py; python run.py job=gpu",
    ),
)

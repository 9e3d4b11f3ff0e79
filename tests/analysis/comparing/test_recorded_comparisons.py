"""Everything that is said of a comparison, for studies in which each branch of it speaks."""

from pathlib import Path

import pytest
from support import recorded
from support.pretended_runs import model, pretended
from support.said import said_lines

from analysis.loading.results import Results

RECORDED = Path(__file__).with_name("recorded")
RATES = (1e-3, 3e-3, 1e-2)


def swept(name: str, losses: list[float], best: int = 1, **changes) -> list[dict]:
    """A model at three rates, best at one of them."""
    found = []
    for place, rate in enumerate(RATES):
        worse = 0.1 * abs(place - best)
        found += model(name, [loss + worse for loss in losses], lr=rate, **changes)
    return found


def verdicts() -> Results:
    """Better, worse and tied models with rates of their own, one unmatched, one at the edge, one with two seeds."""
    return pretended(
        swept("transformer", [3.000, 3.004, 3.001]),
        swept("kda", [2.950, 2.953, 2.949], flops_forward=1.395e6),
        swept("mla", [3.050, 3.052, 3.049], parameters_non_embedding=201_000),
        swept("mom", [3.001, 3.006, 2.999], state_bytes_131072=2_000_000, state_bytes_8192=3_000_000),
        swept("nsa", [2.900, 2.903, 2.901], parameters_non_embedding=240_000, flops_forward=1.9e6),
        swept("shc", [2.960, 2.961, 2.963], best=2),
        swept("lfm2", [3.120, 3.121, 3.118], best=0),
        swept("mesanet", [2.970, 2.972]),
    )


def two_depths_and_experiments() -> Results:
    deep = {"depth": 8, "pattern": "F" * 8, "parameters_non_embedding": 400_000}
    return pretended(
        model("transformer", [3.000, 3.004, 3.001]),
        model("kda", [2.950, 2.953, 2.949], pattern="KKKK"),
        model("transformer", [2.900, 2.904, 2.903], **deep),
        model("kda", [2.850, 2.853, 2.848], **{**deep, "pattern": "K" * 8}),
        model("transformer wide", [2.80, 2.81, 2.79], experiment="another", d_model=128),
        model("kda wide", [2.81, 2.82, 2.80], experiment="another", d_model=128),
    )


def text_and_tasks() -> Results:
    return pretended(
        model("transformer", [3.000, 3.004, 3.001]),
        model("kda", [2.950, 2.953, 2.949]),
        model("transformer mqar", [0.30, 0.32, 0.31], data="mqar", planned_steps=600),
        model(
            "kda mqar", [0.99, 0.98, 1.0], data="mqar", training_set="mqar (length 16, pairs 2)", clip=None
        ),
    )


STUDIES = (verdicts, two_depths_and_experiments, text_and_tasks)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.__name__)
def test_what_is_said_of_a_study_is_what_was_said(study):
    recorded.check(RECORDED / f"{study.__name__}.txt", said_lines(study()), absolute=1e-9)

"""Everything that is said of a comparison, for studies in which each branch of it speaks."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import recorded
from support.pretended_runs import model, pretended
from support.said import known, said_lines

from analysis.caveats import across_machines, models_across_machines
from analysis.loading.results import Results
from analysis.report.columns import task_page

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


def found_twice() -> Results:
    """A run from two machines, and one in two experiments."""
    first = model("transformer", [3.000, 3.004, 3.001], run=["a", "b", "c"])
    again = model("transformer", [3.010, 3.004, 2.981], run=["a", "b", "c"], cpu="Other CPU", experiment="z")
    return pretended(
        first, again, model("kda", [2.90, 2.91, 2.92]), model("kda", [2.90], experiment="y", run=["d"])
    )


def tasks() -> Results:
    """Four models on two tasks: better, worse, a lead, tied, not compared; longer sequences of one task."""
    other = {
        "data": "flip",
        "training_set": "flip (length 32)",
        "chance": 0.5,
        "shortcut": None,
        "memorised": 0.6,
        "test_set": "flip (length 32)",
    }
    parts = []
    for about in ({"data": "mqar"}, other):
        task = about["data"]
        up = 0.1 if task == "flip" else 0.0
        parts += [
            swept_task(f"transformer {task}", [0.800, 0.804, 0.801], about),
            swept_task(f"kda {task}", [0.850 + up, 0.853 + up, 0.849 + up], about),
            swept_task(f"mla {task}", [0.700, 0.702, 0.701 + up], about),
            model(f"nsa {task}", [0.801, 0.806, 0.799], **about),
            model(f"shc {task}", [0.9 - up, 0.9 - up], parameters_non_embedding=250_000, **about),
        ]
    return pretended(*parts, model("mom mqar", [0.5], data="mqar"))


def swept_task(name: str, accuracies: list[float], about: dict) -> list[dict]:
    found = []
    for place, rate in enumerate(RATES):
        lower = [accuracy - 0.2 * abs(place - 1) for accuracy in accuracies]
        found += model(name, lower, lr=rate, validation_loss=2 + abs(place - 1), **about)
    return found


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


def test_a_named_baseline_changes_the_comparison():
    lines = [
        *said_lines(two_depths_and_experiments(), "kda"),
        *recorded.flat(known(task_page(tasks(), "kda").long), "tasks"),
    ]
    recorded.check(RECORDED / "a_named_baseline.txt", lines, absolute=1e-9)


def test_the_same_runs_on_two_machines():
    here = found_twice()
    first, second = (here.part(here.runs["experiment"] == name) for name in ("pretended", "z"))
    both = across_machines(first, replace(second))
    found = [*recorded.flat(known(both), "runs"), f"by {both.attrs['metric']}"]
    recorded.check(
        RECORDED / "two_machines.txt", [*found, *recorded.flat(known(models_across_machines(both)), "models")]
    )

"""Everything that is said of a comparison, for studies in which each branch of it speaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.pretended_runs import model, pretended
from support.said import known, said_lines

from analysis.caveats import across_machines, models_across_machines
from analysis.loading.files import Unfinished
from analysis.loading.results import Results
from analysis.loading.tables import COLUMNS
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


def one_seed() -> Results:
    return pretended(
        model("transformer", [3.0]),
        model("kda", [2.9]),
        model("mla", [3.0]),
        model("mom relu", [3.2], d_model=32),
    )


def two_seeds_of_two_rates() -> Results:
    return pretended(
        swept("transformer", [3.000, 3.004]),
        model("kda", [2.900, 2.903], seed=[2, 3]),
        model("mla", [3.100], lr=1e-2),
    )


def a_noisy_model() -> Results:
    return pretended(
        model("transformer", [3.000, 3.004, 3.001, 3.002], lr_study="rates"),
        model("kda", [2.700, 3.100, 2.900, 2.500], lr_study="rates"),
        model("mla", [2.950, 2.953, 2.949, 2.951], lr_study="rates"),
        model("mom", [3.002, 3.003, 3.001, 3.000], lr_study="more rates"),
    )


def seeds_alike() -> Results:
    return pretended(
        model("transformer", [3.0, 3.0, 3.0]),
        model("kda", [3.0, 3.0, 3.0]),
        model("mla", [2.9, 2.9, 2.9]),
        model("mom", [3.0]),
    )


def seeds_that_differ_in_all_they_can() -> Results:
    """Speeds, loads, peaks, memory and steps of each seed, some of them just on a limit."""
    return pretended(
        model(
            "transformer",
            [3.000, 3.004, 3.061],
            workers=[1, 3, 2],
            load=[2.0, 4.5, 3.0],
            mfu_peak_flops=[1e11, 1.2e11, 1.19e11],
            peak_memory_bytes=[100_000_000, 900_000_000, 300_000_000],
            tokens_per_second=[1000.0, 9000.0, 5000.0],
            best_step=[100, 300, 150],
        ),
        model(
            "kda",
            [2.90, 2.97, 2.98],
            cpu="Other CPU",
            workers=[2, None, 1],
            load=[3.1, None, 2.0],
            mfu_peak_flops=[1e11, 1.09e11, None],
            mfu=[0.2, None, 0.9],
            seconds=[10.0, 90.0, 30.0],
        ),
        model(
            "mla",
            [2.95, 2.99, 2.96],
            cores=1,
            tokens_per_second=[1e11 / 4.2e6, 1e11 / 4.1e6, 7.0],
            seed=[3, 1, 7],
        ),
    )


def several_plain_ones() -> Results:
    return pretended(
        model("transformer rope", [3.000, 3.004, 3.002]),
        model("transformer norm", [2.950, 2.955, 2.951]),
        model("kda norm", [2.910, 2.905, 2.903], pattern="KKKF"),
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


def unequal_in_everything() -> Results:
    """Texts, tokenizers, machines, code, budgets, recipes, loads and peaks that differ; runs that did not finish."""
    other = {"test_set": "news", "tokenizer": "bytes", "vocab_size": 257, "data_fingerprint": "beef"}
    elsewhere = {"cpu": "Other CPU", "capability": None, "threads": 2, "workers": 2, "load": 6.5, "cores": 1}
    unfinished = [
        Unfinished(Path("pretended/one"), "failed", "NaN at step 3 in loss: it is NaN", 3),
        Unfinished(Path("pretended/two"), "failed", "killed"),
        Unfinished(Path("pretended/three"), "incomplete", "stopped or still running", 10),
        Unfinished(Path("pretended/four"), "broken", "summary.json cannot be read"),
        Unfinished(Path("pretended/five"), "foreign", "holds no file of a run"),
        Unfinished(Path("pretended/six"), "foreign", "holds no file of a run"),
    ]
    return pretended(
        model("transformer", [3.000, 3.004, 3.001], planned_steps=600, dirty=[True, False, None]),
        model("kda", [2.950, 2.953, None], **other, warmup_steps=10, clip=None, precision="bf16", lr=1e-3),
        model("mla", [3.050, 3.052, 3.049], **elsewhere, commit=[None, "abc", "abc"], mfu_peak_flops=1.5e11),
        model("mom", [3.10, 3.15], steps=200, stopped="early", tokens=204_800, weight_decay=0.0),
        model(
            "nsa", [2.9, 2.8], tokens_per_second=40_000.0, mfu=1.7, workers=None, gpu="Some GPU", load=None
        ),
        model(
            "shc", [2.9], training_set="books 0", pack="document", seq_len=64, versions='{"python": "3.13"}'
        ),
        unfinished=unfinished,
        problems=[*map(str, unfinished), *(f"pretended/run{n}: summary.json lacks {n}" for n in range(14))],
    )


def equal_tokens_in_unequal_steps() -> Results:
    halved = {
        "planned_steps": 150,
        "tokens_per_step": 2048,
        "steps": 150,
        "match": "flops",
        "match_length": 1024,
    }
    return pretended(
        model("transformer", [3.000, 3.004, 3.001], match="params"),
        model("kda", [2.950, 2.953, 2.949], **halved, parameters_non_embedding=210_000, mfu=None),
        model(
            "mla",
            [3.050, 3.052, 3.049],
            peak_memory_bytes=None,
            workers=None,
            parameters_non_embedding=150_000,
        ),
        model(
            "mom", [3.060, 3.012, 3.039], tokens_per_second=900_000.0, mfu=0.9, flops_training=8e6, gpu="GPU"
        ),
    )


def never_tested() -> Results:
    return pretended(
        model("transformer", [None, None], validation_loss=[3.0, 3.1]),
        model("kda", [None, None], validation_loss=None, steps=[300, 240], tokenizer="bytes", vocab_size=257),
    )


def some_not_tested() -> Results:
    small = {"test_tokens": 5000}
    return pretended(
        model("transformer", [3.0, 3.1, 3.05], **small),
        model("kda", [2.9, None], **small),
        model("mla", [None]),
    )


def found_twice() -> Results:
    """A run from two machines, and one in two experiments."""
    first = model("transformer", [3.000, 3.004, 3.001], run=["a", "b", "c"])
    again = model("transformer", [3.010, 3.004, 2.981], run=["a", "b", "c"], cpu="Other CPU", experiment="z")
    return pretended(
        first, again, model("kda", [2.90, 2.91, 2.92]), model("kda", [2.90], experiment="y", run=["d"])
    )


def scored_by_document() -> Results:
    def documents(shift: float, count: int = 8) -> list[tuple]:
        return [("test", n, 100 + n, (100 + n) * (3 + shift + 0.1 * (n % 3) * shift)) for n in range(count)]

    shifts = {
        "run000": 0.0,
        "run001": 0.01,
        "run002": 0.003,
        "run003": -0.1,
        "run004": -0.08,
        "run005": -0.09,
    }
    shifts |= {"run006": 0.004, "run007": 0.001, "run008": 0.006}
    return pretended(
        model("transformer", [3.000, 3.010, 3.003]),
        model("kda", [2.900, 2.920, 2.910]),
        model("mla", [3.004, 3.001, 3.006]),
        documents={run: documents(shift) for run, shift in shifts.items()},
    )


def selected_by_other_runs() -> Results:
    tried = [
        (
            "",
            name,
            "#111111",
            rate,
            f"lr={rate}",
            1,
            f"{name}{rate}",
            3 + rate,
            "done",
            9.0,
            rate == best,
            edge,
            runs,
        )
        for name, best, edge, runs in (
            ("transformer", 3e-3, "", "run000 run001 run002"),
            ("kda", 1e-2, "highest", "run003 run004 run005"),
            ("mla", 1e-3, "lowest", "run006 run007 run008"),
        )
        for rate in RATES
    ]
    return pretended(
        model("transformer", [3.000, 3.010, 3.003]),
        model("kda", [2.900, 2.920, 2.910], lr=1e-2),
        model("mla", [3.004, 3.001, 3.006], lr=1e-3),
        selection=pd.DataFrame(tried, columns=list(COLUMNS)),
    )


def some_rates_swept() -> Results:
    return pretended(
        swept("transformer", [3.000, 3.010, 3.003]),
        model("kda", [2.900, 2.920, 2.910], lr=1e-2),
        model("mla", [3.004, 3.001, 3.006], lr=1e-3),
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


def layouts() -> Results:
    """Named layouts of two mixers beside their dense model, with options that differ."""
    return pretended(
        model("transformer", [3.000, 3.004]),
        model("hyper one", [2.950, 2.953], preset="hyper", pattern="KFKF", layout="one"),
        model("hyper two", [2.970, 2.974], preset="hyper", pattern="KKFF", layout="two"),
        model("hyper", [2.980, 2.984], preset="hyper", pattern="FKKF"),
    )


STUDIES = (
    *(
        verdicts,
        one_seed,
        two_seeds_of_two_rates,
        a_noisy_model,
        seeds_alike,
        seeds_that_differ_in_all_they_can,
        several_plain_ones,
    ),
    *(two_depths_and_experiments, unequal_in_everything, equal_tokens_in_unequal_steps, never_tested),
    *(some_not_tested, found_twice, scored_by_document, selected_by_other_runs, some_rates_swept, tasks),
    *(text_and_tasks, layouts),
)


DAILY = (verdicts, two_depths_and_experiments, text_and_tasks)


@pytest.mark.parametrize(
    "study",
    [
        pytest.param(study, marks=[] if study in DAILY else [pytest.mark.long], id=study.__name__)
        for study in STUDIES
    ],
)
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

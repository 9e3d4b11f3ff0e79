"""Figures, captions and tables of pretended runs and benches, for what published studies do not vary."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.pretended_runs import model, pretended
from support.said import drawn_lines

from analysis import caveats, load_results
from analysis.loading import probes
from analysis.loading.results import TABLES, Results

RECORDED = Path(__file__).with_name("recorded")
PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"
OF_RUNS = (
    *("loss_against_tokens", "loss_against_flops", "loss_against_time", "gradient_norms", "comparison"),
    "efficiency",
)


def sizes() -> Results:
    """Two models at four and three sizes, one of them at one size alone, which has no line."""
    parts = []
    for place, (width, count) in enumerate(((32, 50_000), (64, 200_000), (96, 450_000), (128, 800_000))):
        about = {"d_model": width, "parameters_non_embedding": count, "flops_training": 20.0 * count}
        loss = 2 + 40 * count**-0.3
        parts.append(model("transformer", [loss, loss + 0.01], **about))
        if place < 3:
            parts.append(model("kda", [loss - 0.1 + 0.02 * place], **about))
    return pretended(*parts, model("mla", [3.0]))


def ranked() -> Results:
    """Layouts of one preset beside the dense model, and those of another at another depth."""
    long = "KF" * 16
    deep = {"preset": "hyper", "depth": 32, "color": "no colour"}
    return pretended(
        model("transformer", [3.000, 3.004]),
        model("hyper one", [2.950, 2.953], preset="hyper", pattern="KFKF", layout="one", color="#D55E00"),
        model("hyper two", [2.970], preset="hyper", pattern="KKFF", layout="two", color="#D55E00"),
        model("hyper long", [2.80], pattern=long, layout="long", **{**deep, "color": "#D55E00"}),
        model("hyper back", [2.81], pattern=long[::-1], layout="back", **deep),
    )


def rates() -> Results:
    """Best rates inside, at both ends, and one that diverged at a rate; a model with one rate."""
    parts = [model("shc", [3.0])]
    for place, rate in enumerate((1e-3, 3e-3, 1e-2)):
        parts += [
            model("transformer", [3.0 + 0.1 * abs(place - 1), 3.02 + 0.1 * abs(place - 1)], lr=rate),
            model("kda", [3.0 + 0.1 * place], lr=rate),
            model("mla", [3.3 - 0.1 * place], lr=rate),
        ]
    return pretended(*parts)


def unlike() -> Results:
    """Mixed tokenizers, one seed each, no memory, no clip, states that cross the dense one's, other machines."""
    flat = {"state_bytes_1024": 4_000_000, "state_bytes_8192": 4_000_000, "state_bytes_131072": 4_000_000}
    return pretended(
        model("transformer", [3.0], peak_memory_bytes=None),
        model("kda", [2.9], **flat, tokenizer="bytes", vocab_size=257, clip=None, cpu="Other CPU", threads=2),
        model("mla", [2.95], **{key: x // 9 for key, x in flat.items()}, flops_training=3e6, steps=240),
        model("mom", [2.99], state_bytes_131072=300_000_000, parameters=900_000, flops_training=6e6),
    )


def three_seeds() -> Results:
    """Three seeds at unequal distances, so that a mean is no median, and runs of unequal length and speed."""
    about = {
        "flops_training": 6e6,
        "parameters": 900_000,
        "steps": [300, 300, 240],
        "seconds": [40.0, 50.0, 90.0],
    }
    return pretended(
        model("transformer", [3.0, 3.01, 3.07], peak_memory_bytes=[1_000_000, 5_000_000, 3_000_000]),
        model("kda", [2.9, 2.98, 2.99], **about, state_bytes_8192=[3_000_000, 4_000_000, 9_000_000]),
        model("mla", [2.95, 3.3, 3.31], tokens=[300_000, 200_000, 310_000], clip=0.5),
    )


CASES = {
    "three_seeds": (three_seeds, (*OF_RUNS, "state_and_memory")),
    "sizes": (sizes, ("scaling",)),
    "ranked": (ranked, ("layout_ranking", "patterns")),
    "rates": (rates, ("learning_rates", "efficiency")),
    "unlike": (
        unlike,
        (*OF_RUNS, "state_and_memory", "scaling", "layout_ranking", "learning_rates", "sinks"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_figures_of_runs_show_what_they_showed(name):
    study, figures = CASES[name]
    recorded.check(RECORDED / f"{name}.txt", drawn_lines(study(), *figures), absolute=1e-9)


def probed() -> Results:
    """A model without sinks, one with a sink in a single head, one with them everywhere; gates, states, routers."""
    runs = pretended(
        model("transformer", [3.0, 3.01, 3.05]),
        model("kda", [2.9, 2.91, 2.97], pattern="KKKK"),
        model("hyper", [2.8], pattern="FFFF", color="#D55E00"),
        model("mla", [2.95]),
    )
    keys = ("experiment", "run", "name", "label", "seed")
    rows = [
        {**{key: getattr(run, key) for key in keys}, **row}
        for run in runs.runs.itertuples()
        if run.preset != "mla"
        for row in measured(run.preset, run.seed)
    ]
    types = {column.name: column.dtype for column in TABLES["measures"]} | {"seed": "Int64"}
    return replace(runs, tables={**runs.tables, "measures": pd.DataFrame(rows).astype(types)})


def measured(name: str, seed: int) -> Iterator[dict]:
    """Rows of the table `measures` of one run."""
    seed = seed**2  # at unequal distances, so that a mean is no median
    strong = {"transformer": 1.2, "kda": 3.0, "hyper": 30.0}[name] * (1 + 0.1 * seed)
    at = {"step": 200 if name == "hyper" else 300, "part": "mixer", "block": "attention", "axis": ""}
    at |= {"split": "test", "count": 10, **dict.fromkeys(("start", "end", "head", "layer"))}

    def row(measure: str, value: float, along: tuple | None = None, **more) -> dict:
        place = {} if along is None else dict(zip(("axis", "start", "end"), along, strict=True))
        return {**at, **more, **place, "measure": measure, "value": value}

    for start, end in ((0, 16), (16, 64), (64, 128), (128, 256), (256, 1024)):
        fall = -0.001 if name == "kda" else 0.5
        beyond = {"transformer": 2.0, "kda": -0.01, "hyper": 0.3}[name] * (end > 128) * seed
        loss = 3 - fall * math.log2(end) / 10 + beyond
        yield row("loss", loss, ("position", start, end), count=end - start)
    for layer in (0, 1):
        yield row("first_token_uniform", 0.02, layer=layer)
        for head in (0, 1):
            one = {"layer": layer, "head": head}
            sink = strong if name == "hyper" or (head, layer) == (1, 1) else 1 + 0.1 * head
            yield row("first_token_mass", 0.02 * sink, **one)
            for gate in ("output", "window") if name == "hyper" else ("value",) * (name == "kda"):
                yield row(f"{gate}_gate_mean", 0.3 + 0.1 * layer + 0.05 * seed, **one)
                yield row(f"{gate}_gate_low", 0.2 - 0.1 * head, **one)
            if name == "hyper":
                for block, choices in (("timeline", 3), ("experts", 2)):
                    routed = {**one, "block": block, "part": "mixer" if choices == 3 else "channel"}
                    for choice in range(choices):
                        share = (choice + 1 + head) / sum(place + 1 + head for place in range(choices))
                        yield row("load", share, ("expert", choice, choice + 1), **routed)
                    yield row("imbalance", 1.5 + head + layer / 4, **routed)
                for start, end in ((0, 16), (16, 128)):
                    yield row("selected_keys", end / 2, ("position", start, end), **one)
                yield row("selected_keys", 20.0 + head, **one)
            if name == "kda":
                for quantile, life in ((0.1, 2.0), (0.5, 30.0 + layer), (0.9, math.inf if layer else 90.0)):
                    yield row("decay_half_life", life * seed, ("quantile", quantile, quantile), **one)
                for end in (16, 128):
                    for measure, value in (("state_norm", 0.1 * end), ("state_rank", math.log2(end) + head)):
                        yield row(measure, value, ("position", end - 1, end), **one)
                for step in (0, 1, 2):
                    yield row("cg_residual", 10.0**-step + layer, ("step", step, step + 1), **one)


def test_figures_of_probes():
    """With the notices of what was probed."""
    results = probed()
    names = (
        *("sinks", "gates", "selection", "extrapolation", "load_balance", "recurrence", "solver"),
        "attention_profile",
    )
    lines = [*drawn_lines(results, *names), *caveats.context_use_caveats(results), *probes.caveats(results)]
    recorded.check(RECORDED / "probes.txt", lines, absolute=1e-9)


def test_attention_on_answers():
    results = load_results(PUBLISHED / "verdict_ema")
    recorded.check(RECORDED / "answers.txt", drawn_lines(results, "task_attention"), absolute=1e-9)

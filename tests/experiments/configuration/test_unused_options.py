"""Options of blocks that no model of a command uses are named in a line, and change nothing else."""

from __future__ import annotations

import pytest
from support.program import Lab

from experiments.configuration.compose import compose
from experiments.configuration.explain import unused_options
from experiments.configuration.schema import Config

UNUSED = "no model of this command uses "


def model(pattern: str, residual: str = "add") -> Config:
    config = Config()
    config.model.pattern = pattern
    config.model.residual.name = residual
    return config


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("model.residual.mhc.iters=5", "model.residual.mhc.iters; model.residual.name=mhc would"),
        ("model.mixers.kda={neg_eigval:false}", "model.mixers.kda; a model with a layer K would"),
        ("+model.mixers.kda.x=1", "model.mixers.kda.x; a model with a layer K would"),
        (
            "model.channel.moe.n_experts=4 model.channel.moe.top_k=1 model.channel.moe.top_k=2",
            "model.channel.moe.n_experts, model.channel.moe.top_k; model.channel.name=moe would",
        ),
    ],
)
def test_an_option_that_no_model_uses_is_named_once(words: str, says: str):
    assert unused_options(words.split(), [model("F"), model("SF")]) == [UNUSED + says]


@pytest.mark.parametrize(
    "words",
    [
        "model=orthgsa",
        "model.residual.name=mhc model.residual.mhc.iters=5",
        "model.mixers.attention.window=64 model.mixers.kda.neg_eigval=false model.mixers.hypergraph.n_timelines=3",
        "model.channel.swiglu.hidden=8 model.d_model=32 residual.ohc.n_streams=2",
    ],
)
def test_what_one_of_the_models_uses_is_not_named(words: str):
    assert unused_options(words.split(), [model("SF"), model("K", "mhc")]) == []


def test_a_layer_that_the_depth_cuts_away_is_not_there():
    config = model("KKKL")
    config.model.depth = 3
    (line,) = unused_options(["model.mixers.kda.neg_eigval=false", "model.mixers.mla.rope_dim=0"], [config])
    assert line == f"{UNUSED}model.mixers.mla.rope_dim; a model with a layer L would"


def test_a_pattern_that_cannot_be_read_is_left_to_the_job():
    assert unused_options(["model.mixers.kda.neg_eigval=false"], [model("nonsense")]) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--multirun model=mla,lfm2 model.mixers.nsa.window=8,16",
            "model.mixers.nsa.window; a model with a layer N would",
        ),
        ("+experiment=residuals model.depth=12 optim.lr=1e-3 seed=0", ""),
    ],
)
def test_a_sweep_is_judged_by_all_its_cells_and_not_by_what_files_set(lab: Lab, words: str, says: str):
    lines: list[str] = []
    with lab._inside(*words.split()):
        compose(notify=lines.append)
    assert lines == ([UNUSED + says] if says else [])


@pytest.mark.slow
def test_a_key_that_is_given_with_plus_signs_is_given_as_any_other(lab: Lab):
    """job=evaluate and generate tell by these keys that they take no model from the command."""
    (config,) = lab.compose("++model.residual.mhc.iters=3", "optim.clip=7")
    assert config.model.residual.mhc.iters == 3
    assert {"model.residual.mhc.iters", "optim.clip"} <= config.given


@pytest.mark.slow
def test_a_command_with_such_an_option_does_the_same_and_says_so(lab: Lab):
    plain = lab.here("job=cost", "cost.lengths=[16]")
    noted = lab.here("job=cost", "cost.lengths=[16]", "model.residual.mhc.iters=5")
    assert plain.err == ""
    assert noted == (
        0,
        plain.out,
        f"notice: {UNUSED}model.residual.mhc.iters; model.residual.name=mhc would\n",
    )


def test_an_option_of_a_task_that_no_run_has_is_named_and_evaluation_uses_all():
    config, words = model("F"), ["data.tasks.parity.length=20", "data.tasks.mqar.pairs=2"]
    config.data.name = "mqar"
    said = "no run of this command uses data.tasks.parity.length; data=parity would"
    assert unused_options(words, [config]) == [said]
    config.job = "evaluate"
    assert unused_options(words, [config]) == []

"""Options that no model uses are named in a line; limits refuse what is just outside, by name."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from support.program import Lab
from support.steady import changed

from experiments.configuration.compose import compose
from experiments.configuration.explain import known_keys, unused_options
from experiments.configuration.hydra_settings import unknown_key
from experiments.configuration.schema import Config
from zoo.errors import UserError
from zoo.options import check_limits

UNUSED = "no model of this command uses "


def model(pattern: str, residual: str = "add") -> Config:
    config = Config()
    config.model.channel.name = "swiglu+mlp"
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
        "model.channel.mlp.hidden=8",
        "model.residual.name=mhc model.residual.mhc.iters=5",
        "model.mixers.attention.window=64 model.mixers.kda.neg_eigval=false model.mixers.hypergraph.n_timelines=3",
        "model.channel.swiglu.hidden=8 model.d_model=32 residual.ohc.n_streams=2",
    ],
)
def test_what_one_of_the_models_uses_is_not_named(words: str):
    assert unused_options(words.split(), [model("SF"), model("K", "mhc")]) == []


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
def test_a_command_with_such_an_option_does_the_same_and_says_so(lab: Lab):
    plain = lab.here("job=cost", "cost.lengths=[16]")
    noted = lab.here("job=cost", "cost.lengths=[16]", "model.residual.mhc.iters=5")
    assert plain.err == ""
    assert noted == (
        0,
        plain.out,
        f"notice: {UNUSED}model.residual.mhc.iters; model.residual.name=mhc would\n",
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("model.residual.iters", "did you mean 'model.residual.mhc.iters'?"),
        ("residual", "did you mean 'model.residual.name'?"),
        ("probe.window", "did you mean 'probe.windows'?"),
        ("lr", "did you mean 'optim.lr'?"),
        ("model.mixer.kda.decay", "did you mean 'model.mixers.kda.decay'?"),
        ("trainer.foo", "trainer has max_steps, accumulate,"),
        ("zzz", "shows all keys"),
    ],
)
def test_a_key_that_is_not_there_names_what_may_have_been_meant(key: str, meant: str):
    assert meant in unknown_key(key, known_keys())


def limited_keys(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field]]:
    """Dotted key and field of every option that has limits."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from limited_keys(value, f"{prefix}{field.name}.")
        elif {"least", "most", "above", "below", "choices"} & field.metadata.keys():
            yield f"{prefix}{field.name}", field


KEYS = dict(limited_keys(Config()))


def beside(limits: Any) -> tuple[list[Any], list[Any]]:
    """Values that the limits allow, and values that they do not."""
    if choices := limits.get("choices"):
        return list(choices() if callable(choices) else choices), ["none of these"]
    low, high = limits.get("least", limits.get("above")), limits.get("most", limits.get("below"))
    inside, outside = [], [low - 1]
    (inside if "least" in limits else outside).append(low)
    if high is not None:
        (inside if "most" in limits else outside).append(high)
        outside.append(high + 1)
    return inside, [*outside, math.nan, math.inf]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_takes_what_its_limits_allow_and_nothing_else(key: str):
    name, a_list = key.replace(".", "__"), "list" in str(KEYS[key].type)
    inside, outside = beside(KEYS[key].metadata)
    for value in inside:
        check_limits(changed(Config(), **{name: [value] if a_list else value}))
    for value in outside:
        with pytest.raises(UserError) as refused:
            check_limits(changed(Config(), **{name: [value] if a_list else value}))
        assert f"{key}[0]" in str(refused.value) if a_list else key in str(refused.value)
        assert str(value) in str(refused.value)

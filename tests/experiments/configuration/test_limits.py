"""Limits stand beside the keys: every one is refused just outside, by name, and taken just inside."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from support.program import Lab
from support.steady import changed

from experiments.configuration.schema import Config
from zoo.errors import UserError
from zoo.options import check_limits


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


@pytest.mark.parametrize(
    "words", [["generate.tokens=0", "run=x"], ["bench.repeats=0"], ["cost.lengths=[8,0]"]]
)
def test_every_job_refuses_them(lab: Lab, words: list[str]):
    outcome = lab.here(f"job={words[0].partition('.')[0]}", *words)
    assert outcome.status == 2
    assert "must be at least 1" in outcome.err
    assert not lab.left_behind()

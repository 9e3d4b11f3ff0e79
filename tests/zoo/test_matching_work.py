"""Equal FLOPs by the hidden width, equal decode states by head widths."""

import dataclasses
import re

import pytest

from zoo import ModelConfig, cost, registry
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.matching import _near, _root, match
from zoo.model import on_meta

SMALL = {"d_model": 64, "n_heads": 4, "depth": 4}
LETTERS = sorted(registry.mixer_by_letter())
LOW = {"depth": 1}  # counting takes its time


def made(pattern: str, options: dict | None = None, **size: int) -> ModelConfig:
    return from_dict(ModelConfig, {"pattern": pattern, **SMALL, **(options or {}), **size})


def built(config: ModelConfig, seq_len: int, vocab_size: int = 50):
    return on_meta(config, vocab_size=vocab_size, seq_len=seq_len)


def layer_flops(config: ModelConfig, seq_len: int, length: int) -> float:
    """FLOPs a token without the LM head, from two vocabularies: what a vocabulary of none would have."""
    some, twice = (cost.flops_per_token(built(config, seq_len, n), length) for n in (40, 80))
    return 2 * some - twice


@pytest.mark.parametrize("letter", [x for x in LETTERS if x != "M"])
def test_flops_agree_within_one_percent(letter):
    plain = layer_flops(made("F", **LOW), 64, 64)
    matched = match(made(letter, **LOW), "flops", seq_len=64)
    assert layer_flops(matched, 64, 64) == pytest.approx(plain, rel=0.01)


@pytest.mark.slow
def test_flops_that_no_width_saves_name_the_nearest_and_the_option_that_would():
    with pytest.raises(
        UserError, match=r"the nearest is [\d,]+ \(\+[\d.]+%\), with channel\.swiglu\.hidden=1;"
    ) as no:
        match(made("M", **LOW), "flops", seq_len=64)
    (steps,) = re.findall(r"set mixers\.mesanet\.cg_steps to (\d+) or less", str(no.value))
    few, more = (made("M", {"mixers": {"mesanet": {"cg_steps": int(steps) + i}}}, **LOW) for i in (0, 1))
    matched = match(few, "flops", seq_len=64)
    assert layer_flops(matched, 64, 64) == pytest.approx(layer_flops(made("F", **LOW), 64, 64), rel=0.01)
    with pytest.raises(UserError, match="the nearest"):
        match(more, "flops", seq_len=64)


@pytest.mark.parametrize("letter", [x for x in LETTERS if x not in "CS"])
def test_states_agree_within_one_percent(letter):
    plain = cost.state_bytes(built(made("F"), 128), 128)
    matched = match(made(letter), "state", seq_len=128)
    assert cost.state_bytes(built(matched, 128), 128) == pytest.approx(plain, rel=0.01)


def test_a_head_width_of_ones_own_contradicts_matching():
    config = made("K", {"mixers": {"kda": {"head_width": 32}}})
    with pytest.raises(
        UserError, match=r"match=state sets mixers\.kda\.head_width, and 32 gives 41,984 bytes"
    ):
        match(config, "state", seq_len=128)


def test_a_state_that_no_width_matches_names_the_nearest():
    with pytest.raises(
        UserError, match=r"the nearest is [\d,]+ \([+-][\d.]+%\), with mixers\.nsa\.head_width=\d+"
    ):
        match(made("N"), "state", seq_len=128, length=2)


def test_state_first_and_parameters_with_what_is_left():
    matched = match(made("L"), "state+params", seq_len=128)
    models = [built(config, 128) for config in (matched, made("F"))]
    states, sizes = zip(
        *((cost.state_bytes(m, 128), cost.parameters_non_embedding(m)) for m in models), strict=True
    )
    assert states[0] == pytest.approx(states[1], rel=0.01)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_an_unknown_quantity_is_refused():
    with pytest.raises(UserError, match="unknown match 'flop'; did you mean 'flops'"):
        match(made("F"), "flop", seq_len=128)


def test_the_width_of_a_polynomial_and_its_neighbours():
    assert _root([5 + 3 * w + 2 * w * w for w in (8, 16, 24)], 5 + 3 * 57.5 + 2 * 57.5**2) == pytest.approx(
        57.5
    )
    assert _root([7 * w for w in (8, 16, 24)], 7 * 12.25) == pytest.approx(12.25)
    assert _near(57.5) == [56, 57, 58, 60, 64]
    assert _near(1.0) == [1, 2, 4, 8]


@pytest.mark.long
@pytest.mark.parametrize("by", ["params", "flops", "state"])
@pytest.mark.parametrize(
    ("size", "seq_len"),
    [((64, 4, 4), 128), ((256, 8, 8), 256), ((768, 12, 14), 512)],
    ids=["small", "medium", "reference"],
)
def test_all_architectures_at_all_sizes(by, size, seq_len):
    presets = pytest.importorskip("experiments.configuration.compose")
    shape = dict(zip(("d_model", "n_heads", "depth"), size, strict=True))
    number = {
        "params": lambda config: cost.parameters_non_embedding(built(config, seq_len)),
        "flops": lambda config: layer_flops(config, seq_len, seq_len),
        "state": lambda config: cost.state_bytes(built(config, seq_len), seq_len),
    }[by]
    plain = number(ModelConfig(**shape))
    for name in presets.presets_to_compare():
        config = dataclasses.replace(from_dict(ModelConfig, presets.overlay(name)), **shape)
        if (by, name) == ("flops", "mesanet") and size[0] < 768:
            config.mixers.mesanet.cg_steps = 6
        assert number(match(config, by, seq_len=seq_len)) == pytest.approx(plain, rel=0.01), name

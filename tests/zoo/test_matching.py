"""Equal parameters or FLOPs by the width of the feed-forward network, equal decode states by head widths."""

import dataclasses
import re

import pytest

from zoo import LanguageModel, ModelConfig, cost, registry
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.matching import _near, _root, _width, match, match_parameters
from zoo.model import on_meta

LETTERS = sorted(registry.mixer_by_letter())


def beside_the_embedding(config: ModelConfig) -> int:
    """Counted on a real model, tensor by tensor."""
    model = LanguageModel(config, vocab_size=5, seq_len=64)
    return sum(
        p.numel() for name, p in model.named_parameters() if not name.startswith(("embedding", "head"))
    )


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize(
    "model",
    [
        *({"pattern": letter} for letter in LETTERS),
        {"residual": {"name": "mhc"}},
        {"channel": {"name": "moe"}},
    ],
    ids=str,
)
def test_parameters_agree_within_one_percent(model, width):
    size = {"d_model": width, "n_heads": 4, "depth": 3}
    plain = beside_the_embedding(ModelConfig(**size))
    matched = match_parameters(from_dict(ModelConfig, {**model, **size}), 64)
    assert abs(beside_the_embedding(matched) / plain - 1) <= 0.01


def test_only_the_width_changes_and_solving_again_changes_nothing():
    config = from_dict(ModelConfig, {"pattern": "KL", "depth": 3})
    matched = match_parameters(config, 64)
    assert match_parameters(matched, 64) == matched
    plain = dataclasses.asdict(matched)
    plain["channel"]["swiglu"]["hidden"] = None
    assert plain == dataclasses.asdict(config)


def test_the_transformer_is_its_own_match():
    assert match_parameters(ModelConfig(), 64).channel.swiglu.hidden == 176


def test_a_mixer_larger_than_the_whole_target_is_refused():
    config = from_dict(ModelConfig, {"pattern": "O", "mixers": {"mom": {"n_memories": 60}}})
    with pytest.raises(UserError, match="match=null"):
        match_parameters(config, 64)


def test_a_unit_of_width_that_is_too_coarse_is_named():
    config = from_dict(ModelConfig, {"pattern": "O", "channel": {"name": "moe"}})
    with pytest.raises(UserError, match="too coarse to come within 1 %") as refused:
        match_parameters(config, 64)
    sized = (
        from_dict(ModelConfig, {"pattern": "O", "channel": {"name": "moe", "moe": {"hidden": n}}})
        for n in (1, 2)
    )
    one, two = map(beside_the_embedding, sized)
    unit, target = two - one, beside_the_embedding(ModelConfig())
    nearest = round(1 + (target - one) / unit)
    assert f"hidden width is {unit / target:.1%} of the {target:,} parameters" in str(refused.value)
    assert f"the nearest is {one + (nearest - 1) * unit:,} (" in str(refused.value)


def test_a_width_of_ones_own_contradicts_matching():
    config = from_dict(ModelConfig, {"pattern": "K", "channel": {"swiglu": {"hidden": 99}}})
    with pytest.raises(UserError, match="not 99"):
        match_parameters(config, 64)


@pytest.mark.parametrize(("pattern", "layers"), [("KF", 2), ("K*5", 5), ("interlaced_sf", 14)])
def test_without_a_depth_the_target_has_as_many_layers_as_the_pattern(pattern, layers):
    size = {"d_model": 64, "n_heads": 4}
    plain = beside_the_embedding(ModelConfig(**size, pattern="F", depth=layers))
    matched = match_parameters(from_dict(ModelConfig, {"pattern": pattern, "depth": None, **size}), 64)
    assert beside_the_embedding(matched) == pytest.approx(plain, rel=0.01)


@pytest.mark.parametrize(
    ("ideal", "coarsest", "width"),
    [(13.0, 8, 16), (11.0, 8, 8), (12.6, 1, 13), (12.4, 1, 12), (0.2, 1, 1)],
)
def test_the_nearest_width_of_the_coarsest_step_that_fits(ideal, coarsest, width):
    """A width may be 0.5 % off, one that no power of two divides 1 %."""
    error = (lambda w: 0.008) if coarsest == 1 else (lambda w: 0.0 if w % coarsest == 0 else 1.0)
    assert _width(ideal, error) == width


def test_heads_that_four_would_not_divide_are_matched():
    """The transformer to match has the same heads, so that it exists where this model does."""
    size = {"d_model": 66, "n_heads": 3, "depth": 2}
    matched = match_parameters(ModelConfig(pattern="C", **size), 64)
    assert abs(beside_the_embedding(matched) / beside_the_embedding(ModelConfig(**size)) - 1) <= 0.01


def test_a_model_of_several_channel_mixers_is_not_matched_by_one():
    config = ModelConfig()
    config.channel.name = "swiglu+moe"
    with pytest.raises(UserError, match="match=params sets the hidden width of one channel mixer"):
        match_parameters(config, 16)
    config.channel.name = "mlp*2"
    assert match_parameters(config, 16).channel.mlp.hidden is not None


SMALL = {"d_model": 64, "n_heads": 4, "depth": 4}
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

"""Equal parameters by the width of the feed-forward network."""

import dataclasses

import pytest

from zoo import LanguageModel, ModelConfig, registry
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.matching import _width, match_parameters

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

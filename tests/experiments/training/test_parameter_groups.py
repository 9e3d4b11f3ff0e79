"""Optimiser groups: rates, decay and clipping as the parts of a model ask for them, and the step they see."""

import pytest
import torch
from torch import nn

from experiments.configuration.schema import OptimConfig
from experiments.optimisation import lr_factor, make_optimizer, parameter_groups
from experiments.training.lightning_modules import clip_gradients
from zoo import LanguageModel, ModelConfig
from zoo.interfaces import MAIN, ParameterGroup, grouped_parameters

CONFIG = OptimConfig(lr=1e-3, weight_decay=0.1, clip=1.0)


def model(residual: str = "ohc", channel: str = "moe", **options) -> LanguageModel:
    config = ModelConfig(pattern="SF", depth=2, d_model=32, n_heads=4)
    config.residual.name, config.channel.name = residual, channel
    for key, value in options.items():
        setattr(getattr(config.residual, residual), key, value)
    return LanguageModel(config, vocab_size=29, seq_len=16)


def treatment(m: nn.Module) -> dict[str, tuple[float, float, str]]:
    """Parameter name -> (learning rate, weight decay, clipping group)."""
    names = {id(parameter): name for name, parameter in m.named_parameters()}
    found = {}
    for group in parameter_groups(m, CONFIG):
        for parameter in group["params"]:
            assert names[id(parameter)] not in found, "a parameter may be in one group only"
            found[names[id(parameter)]] = (group["lr"], group["weight_decay"], group["clip_group"])
    assert found.keys() == set(names.values())
    return found


def test_a_plain_model_has_two_groups():
    groups = parameter_groups(model("add", "swiglu"), CONFIG)
    assert [(g["lr"], g["weight_decay"], g["clip_group"]) for g in groups] == [
        (1e-3, 0.1, "main"),
        (1e-3, 0.0, "main"),
    ]


@pytest.mark.parametrize("residual", ["hc", "identity", "mhc", "ohc", "shc"])
@pytest.mark.parametrize("lr_scale", [1.0, 3.0])
def test_coefficients_learn_at_their_own_rate_and_only_phi_decays(residual, lr_scale):
    for name, (lr, decay, clip) in treatment(model(residual, lr_scale=lr_scale)).items():
        ours = "_residual." in name
        assert lr == pytest.approx(1e-3 * lr_scale if ours else 1e-3), name
        assert clip == ("coefficients" if ours else "main"), name
        if ours:
            assert decay == (0.1 if ".phi_" in name else 0.0), name


def test_clipping_each_sub_block_bounds_the_norm_of_each():
    m = model("ohc", clip="each", readout="learned")
    steps = make_optimizer(m, CONFIG)
    for parameter in m.parameters():
        parameter.grad = torch.ones_like(parameter)
    clip_gradients(steps, 0.5)
    parts = {f"layers.{i}.{part}_residual" for i in range(2) for part in ("mixer", "channel")} | {"streams"}
    for part in parts:
        norms = torch.stack([p.grad.norm() for p in m.get_submodule(part).parameters()])
        assert norms.norm().item() == pytest.approx(0.5, rel=1e-4), part
    assert {group["clip_group"] for group in steps.param_groups} == {
        "main",
        *(f"coefficients of {part}" for part in parts),
    }


def test_a_part_may_leave_the_group_of_its_whole():
    class Part(nn.Module):
        parameter_group = ParameterGroup("part", lr_scale=3.0)
        decays = ("kept",)

        def __init__(self) -> None:
            super().__init__()
            self.kept, self.free = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
            self.inner = nn.Linear(2, 2)

    whole = nn.Sequential(nn.Linear(2, 2), Part())
    found = [(group, decays) for _, group, decays in grouped_parameters(whole)]
    part = Part.parameter_group
    assert found == [(MAIN, True), (MAIN, False), (part, True), (part, False), (part, True), (part, False)]


def test_the_schedule_keeps_the_ratio_of_learning_rates():
    adam = make_optimizer(model(lr_scale=10.0), CONFIG)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: lr_factor(step, CONFIG, 100))
    for _ in range(50):
        adam.step()
        schedule.step()
    rates = {group["clip_group"]: group["lr"] for group in adam.param_groups}
    assert rates["coefficients"] == pytest.approx(10 * rates["main"])
    assert rates["main"] == pytest.approx(CONFIG.lr * lr_factor(50, CONFIG, 100))

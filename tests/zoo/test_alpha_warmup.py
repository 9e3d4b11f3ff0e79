"""The warm-up of α: its schedule, its place in checkpoints, and that evaluation uses it."""

import pytest
import torch
from support.contract_cases import build, tokens
from support.margins import below

import zoo
from zoo import ModelConfig
from zoo.interfaces import set_step
from zoo.residuals.hyper_connections import Clock, HyperConfig


def small(scheme: str = "ohc") -> zoo.LanguageModel:
    config = ModelConfig(pattern="F", depth=2, d_model=32, n_heads=4)
    config.residual.name = scheme
    if scheme in ("ohc", "shc"):
        getattr(config.residual, scheme).gain = None
    return build(config).eval()


def factor(step: int, config: HyperConfig, total: int = 0) -> float:
    clock = Clock(config)
    clock.set(step, total)
    return clock.factor.item()


@pytest.mark.parametrize(
    ("step", "wanted"),
    [(0, 0.1), (999, 0.1), (1000, 0.1), (2000, 0.28), (3500, 0.55), (6000, 1.0), (1_000_000, 1.0)],
)
def test_a_tenth_for_1000_steps_then_to_one_over_5000(step, wanted):
    assert factor(step, HyperConfig()) == pytest.approx(wanted)
    assert factor(step, HyperConfig(), total=36_000) == pytest.approx(wanted)  # a sixth is long enough
    assert factor(step, HyperConfig(warmup_share=None), total=100) == pytest.approx(wanted)


@pytest.mark.parametrize(("step", "wanted"), [(0, 0.1), (10, 0.1), (35, 0.55), (60, 1.0), (360, 1.0)])
def test_of_a_short_training_it_takes_a_sixth(step, wanted):
    assert factor(step, HyperConfig(), total=360) == pytest.approx(wanted)


def test_the_share_of_a_training_that_it_may_take():
    config = HyperConfig(warmup_hold=20, warmup_ramp=20, warmup_share=0.5)
    assert [factor(step, config, total=40) for step in (0, 10, 15, 20)] == pytest.approx(
        [0.1, 0.1, 0.55, 1.0]
    )


def test_other_schedules():
    config = HyperConfig(warmup_factor=0.0, warmup_hold=10, warmup_ramp=0)
    assert [factor(step, config) for step in (0, 10, 11)] == [0, 0, 1]
    assert factor(0, HyperConfig(warmup_factor=1.0)) == 1


@pytest.mark.parametrize("scheme", ["hc", "identity", "mhc", "ohc", "shc"])
@torch.no_grad()
def test_the_step_changes_the_model_as_larger_alphas_would(scheme):
    model, larger = small(scheme), small(scheme)
    for name, parameter in larger.named_parameters():
        if name.endswith("alpha"):
            parameter *= 10
    before = model(tokens(2, 9))[0]
    set_step(model, 6000)
    after = model(tokens(2, 9))[0]
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, larger(tokens(2, 9))[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_step_is_part_of_an_exported_model_and_of_decoding(tmp_path):
    model = small().float()
    set_step(model, 3500, 10_000)
    loaded = zoo.load(zoo.export(model, tmp_path / "model"))
    assert loaded.layers[1].channel_residual.clock.step == 3500
    assert loaded.layers[1].channel_residual.clock.total == 10_000
    batch = tokens(2, 5)
    logits = loaded(batch)[0]
    assert torch.equal(logits, model(batch)[0])
    state = loaded.init_state(2)
    for t in range(5):
        step, state = loaded.step(batch[:, t], state)
        below((step - logits[:, t]).abs().max(), 1e-5 * logits.abs().max())  # 160 units of fp32


@pytest.mark.slow
def test_a_new_step_needs_no_new_graph():
    residual = small().layers[0].mixer_residual
    compiled = torch.compile(residual, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 4, 32, dtype=torch.float64)
    for step in (0, 3500, 6000):
        set_step(residual, step)
        with torch.compiler.set_stance("fail_on_recompile" if step else "default"):
            for got, wanted in zip(compiled(x), residual(x), strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)

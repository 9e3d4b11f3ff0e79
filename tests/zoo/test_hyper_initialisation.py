"""SPEC §2 on initialisation: (a) the plain model, (b) gradients, (c) skew parts, (d) what seeds forget."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, build, gradients, tokens
from support.margins import above, below

import zoo
from zoo import LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.interfaces import set_step
from zoo.residuals.hyper_connections import Clock, HyperConfig

SCHEMES = ("hc", "identity", "mhc", "ohc", "shc")
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


# A gradient that is 0 in exact numbers: sums of some hundred terms of at most 1 in fp64. Others are 1e-9 and more.
NOTHING = 1e-13


def made(scheme: str, pattern: str = "F", dtype: torch.dtype = torch.float64, **options) -> LanguageModel:
    """A model of four layers as it is at initialisation."""
    config = ModelConfig(pattern=pattern, depth=4, d_model=32, n_heads=4)
    config.residual.name = scheme
    for key, value in options.items():
        setattr(getattr(config.residual, scheme), key, value)
    return LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN, seed=5).to(dtype)


def without_turns(model: LanguageModel) -> LanguageModel:
    """`shc` with A = 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("turns"):
                parameter.zero_()
    return model


def loss_of(model: LanguageModel) -> torch.Tensor:
    logits, aux = model(tokens(2, SEQ_LEN))
    return F.cross_entropy(logits.flatten(0, 1), tokens(2, SEQ_LEN, seed=1).flatten()) + model.aux_loss(aux)


def coefficient_gradients(model: LanguageModel) -> dict[str, torch.Tensor]:
    found = gradients(model, loss_of(model))
    return {name: grad for name, grad in found.items() if "_residual." in name or name.startswith("streams.")}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


# (a)
@every_scheme
@pytest.mark.parametrize("pattern", ["F", "SF"])
@pytest.mark.parametrize(
    "options",
    [{}, {"n_streams": 2}, {"n_streams": 3}, {"readout": "learned"}, {"expansion": "learned"}],
    ids=str,
)
@torch.no_grad()
def test_a_identity_starts_as_the_plain_residual(scheme, pattern, options):
    """Logits in fp32, though the streams differ: patterns are on."""
    plain = made("add", pattern, torch.float32)
    model = without_turns(made(scheme, pattern, torch.float32, **options))
    below(relative(model(tokens(2, SEQ_LEN))[0], plain(tokens(2, SEQ_LEN))[0]), 1e-5)
    assert spread_of_streams(model) > 0.05


@pytest.mark.parametrize("factorise", [1, 2, 3, 4])
@torch.no_grad()
def test_a_holds_for_factorised_streams(factorise):
    model = without_turns(made("shc", dtype=torch.float32, factorise=factorise))
    wanted = made("add", dtype=torch.float32)(tokens(2, SEQ_LEN))[0]
    below(relative(model(tokens(2, SEQ_LEN))[0], wanted), 1e-5)


def spread_of_streams(model: LanguageModel) -> float:
    """Largest difference between streams after the last layer, relative to the largest entry."""
    seen = []
    handle = model.layers[-1].register_forward_hook(lambda _m, _i, out: seen.append(out[0]))
    model(tokens(2, SEQ_LEN))
    handle.remove()
    return ((seen[0] - seen[0].mean(-2, keepdim=True)).abs().max() / seen[0].abs().max()).item()


# (b)
@every_scheme
@pytest.mark.parametrize("options", [{}, {"readout": "learned"}], ids=str)
def test_b_every_coefficient_has_a_gradient_at_step_1(scheme, options):
    """Except α, while φ = 0 (it has one at step 2), and mHC's H_res of the first sub-block."""
    model = made(scheme, **options)
    grads = coefficient_gradients(model)
    first = {f"layers.0.mixer_residual.{name}" for name in ("phi_res", "b_res")}
    for name, grad in grads.items():
        if name.endswith("alpha"):
            assert not grad.any(), name
        elif not (scheme == "mhc" and name in first):
            above(grad.norm(), NOTHING, name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of(model).backward()
    optimizer.step()
    for name, grad in coefficient_gradients(model).items():
        if name.endswith("alpha"):
            above(grad.norm(), NOTHING, name)


# (c)
@pytest.mark.parametrize("perturbed", [False, True])
def test_c_of_an_ohc_bias_only_the_skew_part_has_a_gradient(perturbed):
    model = made("ohc")
    if perturbed:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    grads = [grad for name, grad in coefficient_gradients(model).items() if name.endswith("b_res")]
    assert len(grads) == 8
    for grad in grads:
        below((grad + grad.mT).norm(), 1e-12 * grad.norm())


def test_a_the_starting_values_are_those_of_the_table():
    starts = {"hc": torch.eye(4), "mhc": 4 * torch.eye(4), "ohc": torch.zeros(4, 4)}
    for scheme in SCHEMES:
        config = from_dict(ModelConfig, {"residual": {"name": scheme}})
        residual = LanguageModel(config, vocab_size=7, seq_len=8).layers[0].mixer_residual
        torch.testing.assert_close(residual.alpha, torch.full((3,), 0.01))
        assert not any(residual.get_parameter(f"phi_{part}").any() for part in ("pre", "post"))
        assert residual.phi_res is None if scheme == "identity" else not residual.phi_res.any()
        if scheme in starts:
            assert torch.equal(residual.b_res, starts[scheme])


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

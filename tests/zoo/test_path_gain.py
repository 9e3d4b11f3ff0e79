"""The cap on the way through the coefficients: ‖∂(H_res(x)x)/∂x − H_res‖₂ ≤ gain, for random and trained weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, tokens
from support.margins import below

from zoo import LanguageModel, ModelConfig, registry
from zoo.errors import UserError
from zoo.interfaces import Dims, set_step
from zoo.residuals.hyper_connections import CappedResidual
from zoo.residuals.ohc import series_slope

D, GAIN = 6, 0.1
ROUNDING = 1 + 1e-9  # of products of 24 numbers in fp64, through a solve of 4 by 4
capped_schemes = pytest.mark.parametrize("scheme", ["ohc", "shc"])


def made(scheme: str, spread: float = 1.0, n: int = 4, **options) -> CappedResidual:
    """One sub-block's scheme in fp64 after its warm-up, with random parameters."""
    block = registry.get("residual", scheme)
    module = block.cls(block.config(n_streams=n, **options), Dims(D, 2, seq_len=8, layer=0, depth=3)).double()
    generator = torch.Generator().manual_seed(n)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    set_step(module, 10_000, 10_000)
    return module


def way_through(module: CappedResidual, x: torch.Tensor) -> torch.Tensor:
    """∂(H_res(x)x)/∂x − H_res of one token's streams x [n, D], [nD, nD]."""

    def mixed(vec: torch.Tensor) -> torch.Tensor:
        token = vec.view(1, 1, *x.shape)
        return (module(token).res @ token).flatten()

    whole = torch.autograd.functional.jacobian(mixed, x.flatten())
    return whole - torch.kron(module(x[None, None]).res[0, 0], torch.eye(x.shape[1], dtype=x.dtype)).detach()


def largest(module: CappedResidual, size: float = 1.0) -> float:
    """The largest norm of the way through the coefficients over a few tokens."""
    n = module.config.n_streams
    drawn = torch.randn(4, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return max(torch.linalg.matrix_norm(way_through(module, size * x), ord=2).item() for x in drawn)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_bound_counts_the_factor_before_the_cayley_map(scale):
    """Without a cap the way through grows with it, and stays within the bound; with the cap within the gain."""
    free = made("ohc", 0.1, gain=None, cayley_scale=scale)
    assert largest(free) <= free.path_gain().item() * ROUNDING
    unscaled = made("ohc", 0.1, gain=None)
    assert free.path_gain().item() == pytest.approx(scale * unscaled.path_gain().item())
    assert largest(made("ohc", 1.0, gain=GAIN, cayley_scale=scale)) <= GAIN * ROUNDING


SERIES = {"inverse": "neumann", "neumann_terms": 4}


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_without_the_cap_a_series_is_within_its_own_bound_and_not_that_of_a_rotation(spread):
    free = made("ohc", spread, gain=None, **SERIES)
    assert largest(free) <= free.path_gain().item() * ROUNDING
    assert (largest(free) > made("ohc", spread, gain=None).path_gain()) == (spread >= 1)


def test_the_slope_of_a_series_is_its_derivative_at_worst():
    """Σ kθ^(k−1) + (K + 1)θ^K/2: half the derivative of 2·Σ θ^k + θ^(K+1)."""
    for norm in (0.0, 0.3, 1.5):
        theta = torch.tensor(norm, dtype=torch.float64, requires_grad=True)
        (2 * sum(theta**k for k in range(1, 5)) + theta**5).backward()
        assert series_slope(theta, 4).item() == pytest.approx(theta.grad.item() / 2)


@capped_schemes
def test_without_the_cap_it_does_within_its_bound(scheme):
    free = made(scheme, gain=None)
    assert 2 * GAIN < largest(free) <= free.path_gain().item() * ROUNDING


def test_the_bound_of_rotations_is_attained():
    """Two streams at A = 0 that are orthogonal to the way φ turns them."""
    free = made("ohc", n=2, gain=None)
    x = torch.zeros(2, D, dtype=torch.float64)
    x[0, 0] = 1e3  # the norm's eps is nothing beside it
    with torch.no_grad():
        free.b_res.zero_()
        free.phi_res[:, 0] = 0
    found = torch.linalg.matrix_norm(way_through(free, x), ord=2)
    below((found / free.path_gain() - 1).abs(), 1e-9)


def test_the_bound_of_mixtures_is_attained():
    """Two rotations that are opposite, in equal shares."""
    free = made("shc", n=2, gain=None)
    x = torch.zeros(2, D, dtype=torch.float64)
    x[0, 0] = 1e3
    quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)  # Cayley turns it by 90 degrees
    with torch.no_grad():
        free.turns.copy_(torch.stack([quarter, -quarter]))
        free.phi_res[:, 0] = 0
    found = torch.linalg.matrix_norm(way_through(free, x), ord=2)
    below((found / free.path_gain() - 1).abs(), 1e-9)


def test_the_slope_of_a_capped_series_is_that_of_what_the_cap_leaves_of_it():
    """‖A‖ is half of the cap at most, however large the weights, and what b_res adds, which has no cap."""
    series, exact = made("ohc", 10.0, gain=GAIN, **SERIES), made("ohc", 10.0, gain=GAIN)
    skew = (series.b_res - series.b_res.mT) / 2
    norm = GAIN / 2 + torch.linalg.matrix_norm(skew) / math.sqrt(2)
    wanted = exact.sensitivity() * series_slope(norm, SERIES["neumann_terms"])
    assert series.sensitivity().item() == pytest.approx(wanted.item(), rel=1e-9)


@capped_schemes
def test_below_the_cap_nothing_changes(scheme):
    capped, free = made(scheme, 0.01, gain=1.0), made(scheme, 0.01, gain=None)
    assert 0 < capped.path_gain() < 1
    assert torch.equal(capped.scale(), free.scale())


@capped_schemes
def test_the_cap_scales_alpha_of_the_mixing_alone(scheme):
    capped, free = made(scheme, gain=GAIN), made(scheme, gain=None)
    factor = GAIN / free.path_gain()
    wanted = free.alpha * torch.stack([torch.ones(()), torch.ones(()), factor])
    torch.testing.assert_close(capped.scale(), wanted)


def trained(scheme: str, gain: float | None) -> tuple[LanguageModel, list[torch.Tensor]]:
    """A model of two layers after 30 steps of a rate at which coefficients run away, and the streams of every layer."""
    config = ModelConfig(pattern="F", depth=2, d_model=16, n_heads=2)
    config.residual.name = scheme
    getattr(config.residual, scheme).gain = gain
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN, seed=0).double()
    set_step(model, 10_000, 10_000)
    residual = [p for name, p in model.named_parameters() if "_residual." in name]
    optimizer = torch.optim.Adam([{"params": residual, "lr": 0.05}])
    for step in range(30):
        logits, _ = model(tokens(2, SEQ_LEN, seed=step))
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tokens(2, SEQ_LEN, seed=step + 1).flatten()).backward()
        optimizer.step()
    seen = []
    handles = [
        layer.register_forward_pre_hook(lambda _m, args: seen.append(args[0])) for layer in model.layers
    ]
    with torch.no_grad():
        model(tokens(1, SEQ_LEN))
    for handle in handles:
        handle.remove()
    return model, seen


@capped_schemes
@pytest.mark.slow
def test_training_cannot_leave_the_cap(scheme):
    found = {}
    for gain in (GAIN, None):
        model, streams = trained(scheme, gain)
        norms = [
            torch.linalg.matrix_norm(way_through(layer.mixer_residual, x[0, t]), ord=2).item()
            for layer, x in zip(model.layers, streams, strict=True)
            for t in (0, SEQ_LEN - 1)
        ]
        found[gain] = max(norms)
    assert found[GAIN] <= GAIN * ROUNDING
    assert found[None] > GAIN * ROUNDING


@pytest.mark.parametrize("gain", [0.0, -1.0, math.nan, math.inf])
def test_a_cap_that_means_nothing_is_refused(gain):
    with pytest.raises(UserError, match=r"gain of a residual scheme=.* must be a number above 0"):
        made("ohc", gain=gain)

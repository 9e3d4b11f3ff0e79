"""Claims 18, 21 and 22: exact properties of KDA, the mesa layer and the mixture of memories."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from experiments.evidence import measure
from experiments.evidence.attention_mixers import DIMS, difference, inputs, outputs, randomised
from experiments.evidence.numbers import ROUNDING, Number, bounded, exact, near, sampled
from zoo.mixers.attention import Attention, AttentionConfig
from zoo.mixers.kda import KDA, KDAConfig

FP64 = ROUNDING[torch.float64]
normal = functools.partial(torch.randn, dtype=torch.float64)


def keys(*shape: int) -> Tensor:
    """Random vectors of length 1, `shape`, fp64."""
    return F.normalize(normal(*shape), dim=-1)


@measure(18)
def recurrence_of_kda() -> Iterator[Number]:
    """The chunked form against the recurrence, and what the order of past tokens does to the last output.

    Attention without positions gives the same output for any order of the tokens before; KDA, which has none either,
    does not.
    """
    q, k, v = keys(1, 200, 2, 16), keys(1, 200, 2, 16), normal(1, 200, 2, 16)
    g, beta = -normal(1, 200, 2, 16).square(), torch.sigmoid(normal(1, 200, 2))
    forms = [kernels.delta_rule(q, k, v, g, beta, backend=form)[0] for form in ("torch", "reference")]
    yield bounded("chunked against recurrent, relative", difference(*forms), 1e-10)
    x = inputs()
    swapped = x.clone()
    swapped[:, [-4, -2]] = x[:, [-2, -4]]
    for name, made in (
        ("KDA", KDA(KDAConfig(), DIMS)),
        ("attention without positions", Attention(AttentionConfig(positions="none"), DIMS)),
    ):
        a, b = (outputs(randomised_once(made), each)[:, -1] for each in (x, swapped))
        change = difference(b, a)
        order = f"change of the last output when two earlier tokens swap places, {name}"
        yield bounded(order, change, 1e-10) if change < 1e-10 else near(order, change)


def randomised_once(mixer):
    """`randomised`, with the same numbers at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return randomised(mixer)


def readout(w: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
    """The objective of the mesa layer after all tokens: ½Σ ω‖v − Wk‖² + ½Tr(WΛWᵀ), one head."""
    _, k, v, g, beta, lamb = (x.squeeze(0).squeeze(1) if x.dim() > 2 else x.squeeze(0) for x in arguments)
    left = (g.sum() - g.cumsum(0)).exp() * beta
    return 0.5 * (left * (v - k @ w.T).square().sum(-1)).sum() + 0.5 * (w.square() * lamb).sum()


@measure(21)
def mesa_is_a_ridge_regression() -> Iterator[Number]:
    """The gradient of the ridge objective at the layer's readout, conjugate gradients against it, and the delta rule.

    In-context regression: v = W·k + noise; the error of the last 64 of 128 predictions, against that of the delta rule
    (β = 1, nothing forgotten), a ratio a draw.
    """
    width, time = 64, 256
    q, k, v = (x[:, :, None] for x in (keys(1, time, width), keys(1, time, width), normal(1, time, 8)))
    g, beta = -0.01 * normal(1, time, 1).square(), torch.sigmoid(normal(1, time, 1))
    arguments = q, k, v, g, beta, torch.ones(1, width, dtype=torch.float64)
    _, state = kernels.mesa(*arguments, output_final_state=True)
    h, hv = (x[0, 0] for x in state)
    w = torch.linalg.solve(h + torch.eye(width, dtype=h.dtype), hv).T.requires_grad_()
    (gradient,) = torch.autograd.grad(readout(w, arguments), w)
    yield bounded("gradient of the ridge objective at the layer's readout", gradient.norm() / hv.norm(), FP64)
    solved = kernels.mesa(*arguments, cg_steps=width)[0]
    for steps, bound in ((5, 0.1), (10, 1e-2), (30, 1e-9)):
        output = kernels.mesa(*arguments, cg_steps=steps)[0]
        yield bounded(
            f"{steps} steps of conjugate gradients against the solve, relative",
            difference(output, solved),
            bound,
        )
    yield sampled("error of in-context regression over the delta rule's", regression_errors(40), "times")


def regression_errors(draws: int) -> Tensor:
    """The mesa layer's error over the delta rule's on noisy linear regression in context, [draws]."""
    width, time = 32, 128
    k, w = keys(draws, time, 1, width), normal(draws, width, width)
    v = k @ w.mT[:, None] + 0.1 * normal(draws, time, 1, width)
    zeros, ones = torch.zeros(draws, time, 1).double(), torch.ones(draws, time, 1).double()
    _, mesa = kernels.mesa(
        k, k, v, zeros, ones, torch.full((1, width), 0.01).double(), output_final_state=True
    )
    _, delta = kernels.delta_rule(k, k, v, zeros, ones, scale=1.0, output_final_state=True)
    ridge = torch.linalg.solve(mesa[0] + 0.01 * torch.eye(width).double(), mesa[1])
    errors = [(state[:, 0] - w.mT).flatten(1).norm(dim=1) for state in (ridge, delta)]
    return errors[0] / errors[1]


def written(memories: int, width: int, k: Tensor, v: Tensor, routes: Tensor) -> Tensor:
    """States [B, memories, 1, width, V] after writing every value once under its key, to the memory of its route."""
    batch, time = k.shape[:2]
    each = (batch, time, memories, 1)
    k, v = (x[:, :, None, None].expand(*each, -1) for x in (k, v))
    zeros, ones = torch.zeros(each).double(), torch.ones(each).double()
    weights = torch.ones(batch, time, 1).double()
    _, state = kernels.memory_mixture(
        k[:, :, 0], k, v, zeros, ones, routes[..., None], weights, output_final_state=True
    )
    assert state.shape[3] == width
    return state[:, :, 0]


def read_error(states: Tensor, k: Tensor, v: Tensor, routes: Tensor) -> Tensor:
    """The relative error of reading every value back from the memory that it was written to, [B]."""
    chosen = torch.gather(states, 1, routes[..., None, None].expand(-1, -1, *states.shape[2:]))
    read = (k[..., None, :] @ chosen).squeeze(-2)
    return (read - v).flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)


@measure(22)
def memories_interfere() -> Iterator[Number]:
    """Memories that no token names, and what other writes do to a value: random keys, each written once.

    Four memories of 32 key channels, a key's memory drawn at random, against one of 32 and one of equal state, of 128.
    """
    q, k, v = keys(2, 50, 1, 16), keys(2, 50, 3, 1, 16), normal(2, 50, 3, 1, 8)
    g, beta = -normal(2, 50, 3, 1).square(), torch.sigmoid(normal(2, 50, 3, 1))
    before, routes = normal(2, 3, 1, 16, 8), torch.randint(2, (2, 50, 1))
    weights = torch.ones(2, 50, 1).double()
    _, after = kernels.memory_mixture(
        q, k, v, g, beta, routes, weights, initial_state=before, output_final_state=True
    )
    yield exact(
        "largest change of a memory that no token names", (after[:, 2] - before[:, 2]).abs().max().item()
    )
    draws, pairs = 200, 64
    values, routes = normal(draws, pairs, 32), torch.randint(4, (draws, pairs))
    narrow, wide, none = keys(draws, pairs, 32), keys(draws, pairs, 128), torch.zeros_like(routes)
    four = read_error(written(4, 32, narrow, values, routes), narrow, values, routes)
    for name, k, width in (("of one memory's width", narrow, 32), ("of equal state", wide, 128)):
        one = read_error(written(1, width, k, values, none), k, values, none)
        yield mean_ratio(f"error of reading 64 pairs from four memories over one {name}", four, one)


def mean_ratio(name: str, ours: Tensor, peer: Tensor) -> Number:
    """The ratio of two means over draws with its 95 % bootstrap interval."""
    picks = torch.randint(len(ours), (2000, len(ours)))
    drawn = sampled(name, ours[picks].mean(1) / peer[picks].mean(1), "times")
    return Number(name, (ours.mean() / peer.mean()).item(), drawn.low, drawn.high, "times")

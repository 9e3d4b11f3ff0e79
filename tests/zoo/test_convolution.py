"""The short convolution that mixers share: its start, its context, its state."""

import pytest
import torch
from support.contract_cases import boundaries

from zoo import Context
from zoo.modules.layers import ShortConvolution

WIDTH, TIME = 6, 11


def inputs(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, TIME, WIDTH, generator=generator, dtype=torch.float64)


def context(x: torch.Tensor, *lengths: int) -> Context:
    tokens = torch.zeros(x.shape[:2], dtype=torch.int64)
    return Context.of(tokens, boundaries(*lengths) if lengths else None)


def test_weights_start_uniform_in_their_bounds():
    conv = ShortConvolution(4096, 4)
    conv.init_weights(torch.Generator().manual_seed(0))
    assert conv.weight.abs().max() <= 0.5
    assert abs(conv.weight.std().item() * 12**0.5 - 1) < 0.02
    assert abs(conv.weight.mean().item()) < 0.01


@pytest.mark.parametrize("activation", [None, "silu"])
@torch.no_grad()
def test_step_repeated_is_forward(activation):
    conv = ShortConvolution(WIDTH, 4, activation).double()
    x = inputs(2)
    y = conv(x, context(x))
    state = conv.init_state(2, dtype=torch.float64)
    assert state.shape == (2, WIDTH, 3)
    for t in range(TIME):
        out, state = conv.extend(x[:, t : t + 1], state)
        torch.testing.assert_close(out[:, 0], y[:, t], rtol=0, atol=1e-14)

"""The mixer `M` against its definition, token by token; its start, its sizes and its decode state."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import randomised
from torch import Tensor

from zoo import Context, Dims
from zoo.mixers.mesanet import MesaNet, MesaNetConfig

D, HEADS, T = 16, 4, 11


def mixer(**options) -> MesaNet:
    return randomised(MesaNet(MesaNetConfig(**options), Dims(D, HEADS, seq_len=T, layer=0, depth=2)))


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """SiLU of a causal depthwise convolution of x [T, D], by PyTorch."""
    padded = F.pad(x.T, (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], groups=D)).T


def by_definition(m: MesaNet, x: Tensor) -> Tensor:
    """y [T, D] of one sequence x [T, D]: every head and token by itself, the system solved exactly."""
    parts = {"q": x @ m.q_proj.weight.T, "k": x @ m.k_proj.weight.T, "v": x @ m.v_proj.weight.T}
    for name, convolution in m.convolutions.items():
        parts[name] = convolved(parts[name], convolution.weight)
    beta = torch.sigmoid(m.beta_proj(x))
    gamma = torch.sigmoid(x @ m.gamma_proj.weight.T + m.gamma_proj.bias) * (1 - 0.0025 * beta**2)
    q, k, v = (parts[name].unflatten(-1, (m.heads, m.width)) for name in "qkv")
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    o = torch.zeros_like(v)
    for head in range(m.heads):
        h, g = torch.zeros(2, m.width, m.width, dtype=torch.float64)
        lamb = torch.diag(0.25 + F.softplus(m.lamb[head]))
        for t in range(len(x)):
            h = gamma[t, head] * h + beta[t, head] * torch.outer(k[t, head], k[t, head])
            g = gamma[t, head] * g + beta[t, head] * torch.outer(k[t, head], v[t, head])
            o[t, head] = torch.linalg.solve(h + lamb, q[t, head]) @ g
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * m.o_norm.weight
    return o.flatten(-2) @ m.o_proj.weight.T


@pytest.mark.parametrize(
    "options",
    [{}, {"value_conv": True}, {"n_heads": 4}, {"kernel_size": 2}],
    ids=["plain", "value_conv", "heads", "kernel"],
)
@torch.no_grad()
def test_forward_is_the_definition(options):
    m, x = mixer(**options), inputs()
    y, aux = m(x, Context.of(torch.zeros(2, T, dtype=torch.int64)))
    assert aux == {}
    torch.testing.assert_close(y, torch.stack([by_definition(m, row) for row in x]), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("heads", "own"), [(12, 6), (4, 2), (2, 1), (1, 1), (3, 3)])
def test_heads_are_twice_as_wide_as_the_models(heads, own):
    made = MesaNet(MesaNetConfig(), Dims(24 * heads, heads, seq_len=T, layer=0, depth=1))
    assert (made.heads, made.width) == (own, 24 * heads // own)

"""The mixer `M` against its definition, token by token; its start, its sizes and its decode state."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from support.contract_cases import randomised
from support.margins import below
from torch import Tensor

from zoo import Context, Dims, LanguageModel, ModelConfig, UserError
from zoo.config import from_dict
from zoo.mixers.mesanet import MesaNet, MesaNetConfig

D, HEADS, T = 16, 4, 11
PRESET = yaml.safe_load((Path(__file__).parents[2] / "conf" / "model" / "mesanet.yaml").read_text())


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


@torch.no_grad()
def test_decoding_is_forward_at_any_number_of_steps():
    """Two steps are far from the solution; the chunked form and one token stand at the same point."""
    x, ctx = inputs(), Context.of(torch.zeros(2, T, dtype=torch.int64))
    for steps in (2, 30):
        m = mixer(cg_steps=steps, value_conv=True, n_heads=1)
        state, outputs = m.init_state(2, dtype=torch.float64), []
        for token in x.split(1, 1):
            y, state = m.extend(token, state)
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), m(x, ctx)[0], rtol=0, atol=1e-10)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("different", [4, 16])
def test_decoding_a_text_that_repeats_is_forward_in_fp32(different):
    """Gates as open as they get, a small Λ, two thousand tokens: to a thousandth of the largest number."""
    m = randomised(MesaNet(MesaNetConfig(n_heads=1), Dims(32, 1, seq_len=2048, layer=0, depth=2))).float()
    m.gamma_proj.bias.fill_(12.0)
    m.beta_proj.bias.fill_(-2.0)  # what forgets, 0.0025·β², falls faster than what is written
    m.lamb.fill_(-4.0)
    words = torch.randn(different, 32, generator=torch.Generator().manual_seed(5))
    x = words[torch.arange(2048) % different][None]
    ctx = Context.of(torch.zeros(1, 2048, dtype=torch.int64))
    wanted = m(x, ctx)[0][:, -16:]
    state, outputs = m.init_state(1), []
    for part in (x[:, :-16], *x[:, -16:].split(1, 1)):
        y, state = m.extend(part, state)
        outputs.append(y)
    below((torch.cat(outputs[1:], 1) - wanted).abs().max() / wanted.abs().max(), 1e-3)


@pytest.mark.parametrize(("bias", "kept"), [(4.0, 0.982014), (0.0, 0.5)])
def test_it_starts_with_lambda_one_writing_half_and_keeping_what_forget_bias_says(bias, kept):
    preset = {**PRESET, "mixers": {"mesanet": {"forget_bias": bias}}}
    model = LanguageModel(from_dict(ModelConfig, preset), vocab_size=32, seq_len=T)
    m = model.layers[0].mixer
    torch.testing.assert_close(0.25 + F.softplus(m.lamb), torch.ones_like(m.lamb))
    g, beta = m._gates(torch.zeros(1, 1, 64))
    torch.testing.assert_close(beta, torch.full_like(beta, 0.5))
    torch.testing.assert_close(g.exp(), torch.full_like(g, kept * (1 - 0.0025 / 4)))


@pytest.mark.parametrize(("heads", "own"), [(12, 6), (4, 2), (2, 1), (1, 1), (3, 3)])
def test_heads_are_twice_as_wide_as_the_models(heads, own):
    made = MesaNet(MesaNetConfig(), Dims(24 * heads, heads, seq_len=T, layer=0, depth=1))
    assert (made.heads, made.width) == (own, 24 * heads // own)


def test_at_reference_size_it_costs_as_much_as_attention():
    """6 heads of 128 at D = 768: 1.01 times 4·D²."""
    with torch.device("meta"):
        made = MesaNet(MesaNetConfig(), Dims(768, 12, seq_len=512, layer=0, depth=14))
    count = sum(p.numel() for p in made.parameters())
    convolutions, gates, lamb, gain = 2 * 4 * 768, 2 * (768 * 6 + 6), 768, 128
    assert count == 4 * 768**2 + convolutions + gates + lamb + gain
    assert round(count / (4 * 768**2), 2) == 1.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_decode_state_is_constant_in_time(dtype):
    """H and G in at least fp32, and three inputs a convolution."""
    m = mixer().to(dtype)
    state = m.init_state(1, capacity=1000, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    wanted = 2 * 2 * 8 * 8 * wide.itemsize + 2 * 3 * D * dtype.itemsize
    for token in inputs(1).to(dtype).split(1, 1):
        assert m.state_bytes(state) == wanted
        assert state.h_kk.dtype == wide
        _, state = m.extend(token, state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cg_steps": 0}, "mesanet.cg_steps=0"),
        ({"forget_bias": -1.0}, "mesanet.forget_bias=-1.0 must be at least 0"),
        ({"kernel_size": 0}, "kernel_size=0 must be at least 1"),
        ({"n_heads": 3}, "mesanet.n_heads=3 does not divide"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        mixer(**options)

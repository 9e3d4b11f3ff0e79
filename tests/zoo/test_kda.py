"""The mixer `K` against its definition, token by token; its start, its sizes and its decode state."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from support.contract_cases import randomised
from torch import Tensor

import kernels
from zoo import Context, Dims, LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.mixers.kda import KDA, KDAConfig
from zoo.modules.layers import LogDecay

D, HEADS, T = 16, 4, 11
PRESETS = Path(__file__).parents[2] / "conf" / "model"
CTX = Context.of(torch.zeros(2, T, dtype=torch.int64))


def preset(name: str) -> ModelConfig:
    return from_dict(ModelConfig, yaml.safe_load((PRESETS / f"{name}.yaml").read_text()))


def mixer(**options) -> KDA:
    return randomised(KDA(KDAConfig(**options), Dims(D, HEADS, seq_len=T, layer=0, depth=2)))


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def by_definition(m: KDA, x: Tensor, top_beta: float) -> Tensor:
    """y [T, D] of one sequence x [T, D], by the equations of SPEC, every head and token by itself."""
    taps = m.convolution.weight
    padded = F.pad((x @ m.qkv_proj.weight.T).T, (taps.shape[1] - 1, 0))
    qkv = F.silu(F.conv1d(padded, taps[:, None], groups=3 * D)).T
    q, k, v = (part.unflatten(-1, (m.heads, m.width)) for part in qkv.chunk(3, -1))
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    beta = top_beta * torch.sigmoid(x @ m.beta_proj.weight.T)
    if m.per_channel:
        low = (x @ m.decay_down.weight.T @ m.decay_up.weight.T).unflatten(-1, (m.heads, m.width))
        g = -m.decay.A_log.exp() * F.softplus(low + m.decay.dt_bias)
    else:
        g = -m.decay.A_log.exp() * F.softplus(x @ m.decay_proj.weight.T + m.decay.dt_bias)
        g = g.unsqueeze(-1).expand(-1, -1, m.width)
    o = torch.zeros_like(v)
    for head in range(m.heads):
        state = torch.zeros(m.width, m.width, dtype=torch.float64)
        for t in range(len(x)):
            key, b = k[t, head], beta[t, head]
            erase = torch.eye(m.width, dtype=torch.float64) - b * torch.outer(key, key)
            state = erase @ torch.diag(g[t, head].exp()) @ state + b * torch.outer(key, v[t, head])
            o[t, head] = m.width**-0.5 * state.T @ q[t, head]
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * m.o_norm.weight
    gate = torch.sigmoid(x @ m.gate_down.weight.T @ m.gate_up.weight.T + m.gate_up.bias)
    return (o.flatten(-2) * gate) @ m.o_proj.weight.T


@pytest.mark.parametrize(
    "options",
    [{}, {"neg_eigval": True}, {"n_heads": 4}, {"kernel_size": 2}, {"decay": "head"}],
    ids=["plain", "negative", "heads", "kernel", "one_rate"],
)
@torch.no_grad()
def test_forward_is_the_definition(options):
    m, x = mixer(**options), inputs()
    y, aux = m(x, CTX)
    assert aux == {}
    top = 2.0 if options.get("neg_eigval") else 1.0
    wanted = torch.stack([by_definition(m, row, top) for row in x])
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_only_negative_eigenvalues_can_count_modulo_two():
    """A key that is written with β = 2 and v = 0 turns the sign of what is stored: parity, at any length."""
    x = torch.ones(1, 64, D, dtype=torch.float64)
    for negative, wanted in ((True, 1.0), (False, 0.0)):
        m = mixer(neg_eigval=negative, n_heads=1)
        m.beta_proj.weight.fill_(10.0)
        m.decay.A_log.fill_(-50.0)
        qkv = torch.cat([torch.eye(D)[:1].expand(2, D), torch.zeros(1, D)]).double().flatten()
        stored = torch.zeros(1, 1, D, D, dtype=torch.float64)
        stored[..., 0, 0], state = 1.0, []
        for token in x.unbind(1):
            inputs = m._inputs(token[:, None], qkv.expand(1, 1, -1))
            _, stored = kernels.delta_rule(*inputs, initial_state=stored, output_final_state=True)
            state.append(stored[0, 0, 0, 0])
        signs = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(32)
        torch.testing.assert_close(torch.stack(state), wanted * signs, rtol=0, atol=1e-3)


def test_decays_are_drawn_from_the_whole_of_their_ranges():
    """Minimum, quartiles and maximum of 4,000: A uniform on [1, 16], log10 of dt uniform on [−3, −1]."""
    decay = LogDecay((4000, 1), (4000, 1))
    decay.init_weights(torch.Generator().manual_seed(0))
    points = torch.linspace(0, 1, 5)
    rates, dt = decay.A_log.exp().flatten(), F.softplus(decay.dt_bias.flatten()).log10()
    assert (torch.quantile(rates, points) - 1 - 15 * points).abs().max() < 0.3
    assert (torch.quantile(dt, points) + 3 - 2 * points).abs().max() < 0.04
    assert 1 - 1e-5 <= rates.min() < 1.02
    assert 15.98 < rates.max() <= 16 + 1e-4
    assert -3 - 1e-5 <= dt.min() < -2.995
    assert -1.005 < dt.max() <= -1 + 1e-5


@pytest.mark.parametrize(("heads", "own"), [(12, 6), (4, 2), (2, 1), (1, 1), (3, 3)])
def test_heads_are_twice_as_wide_as_the_models(heads, own):
    made = KDA(KDAConfig(), Dims(24 * heads, heads, seq_len=T, layer=0, depth=1))
    assert (made.heads, made.width) == (own, 24 * heads // own)


def test_kimi_linear_is_three_kda_layers_then_latent_attention_without_positions():
    model = LanguageModel(preset("kda"), vocab_size=32, seq_len=T)
    assert model.letters == ("KKKL" * len(model.letters))[: len(model.letters)]
    latent = model.layers[3].mixer
    assert type(latent).__name__ == "MLA"
    x = torch.randn(1, T, model.config.d_model, generator=torch.Generator().manual_seed(0))
    y, _ = latent(x, Context.of(torch.zeros(1, T, dtype=torch.int64)))
    order = torch.tensor([3, 0, 2, 1, *range(4, T)])
    shuffled, _ = latent(x[:, order], Context.of(torch.zeros(1, T, dtype=torch.int64)))
    torch.testing.assert_close(shuffled[:, 4:], y[:, 4:])

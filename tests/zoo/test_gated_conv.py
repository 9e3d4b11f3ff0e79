"""The gated short convolution against its definition, and LFM2's layout and size."""

from pathlib import Path

import pytest
import torch
import yaml
from support.contract_cases import boundaries

from zoo import Context, Dims, ModelConfig, cost
from zoo.config import architecture_of, from_dict
from zoo.mixers.gated_conv import GatedConv, GatedConvConfig
from zoo.model import on_meta
from zoo.modules.layers import ShortConvolution

D, T = 8, 10
LFM2 = yaml.safe_load((Path(__file__).parents[2] / "conf" / "model" / "lfm2.yaml").read_text())


def mixer(**options) -> GatedConv:
    made = GatedConv(GatedConvConfig(**options), Dims(D, 2, seq_len=T, layer=0, depth=2)).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def inputs() -> torch.Tensor:
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def lfm2(**options) -> ModelConfig:
    return from_dict(ModelConfig, LFM2 | options)


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@torch.no_grad()
def test_forward_is_the_definition(kernel_size):
    """One token and one channel at a time."""
    m, x = mixer(kernel_size=kernel_size), inputs()
    y, aux = m(x, Context.of(torch.zeros(2, T, dtype=torch.int64)))
    assert aux == {}
    for b in range(2):
        gates_in, gates_out, h = (m.in_proj.weight @ x[b].T).view(3, D, T)
        z = torch.zeros(D, T, dtype=torch.float64)
        for t in range(T):
            for age in range(min(kernel_size, t + 1)):
                z[:, t] += m.conv.weight[:, -1 - age] * gates_in[:, t - age] * h[:, t - age]
        wanted = m.out_proj.weight @ (gates_out * z)
        torch.testing.assert_close(y[b], wanted.T, rtol=1e-10, atol=1e-10)


def test_lfm2_has_attention_where_it_should():
    letters = architecture_of(lfm2(depth=16)).letters
    assert [i for i, letter in enumerate(letters) if letter == "F"] == [2, 5, 8, 10, 12, 14]
    assert set(letters) == {"C", "F"}
    attention = lfm2().mixers.attention
    assert attention.qk_norm
    assert attention.rope_base == 1e6


@pytest.mark.parametrize("depth", [1, 4, 14, 20, 32])
def test_lfm2_at_other_depths_repeats_its_pattern(depth):
    sixteen = architecture_of(lfm2(depth=16)).letters
    assert architecture_of(lfm2(depth=depth)).letters == (sixteen * 2)[:depth]


def test_lfm2_at_full_size_is_the_published_model():
    """LFM2-1.2B: 16 layers of 2048, 32 heads, 8 KV heads, SwiGLU of 8192, 65,536 tokens, tied embeddings."""
    config = lfm2(depth=16, d_model=2048, n_heads=32)
    config.mixers.attention.n_kv_heads = 8
    config.channel.swiglu.hidden = 8192
    model = on_meta(config, vocab_size=65_536, seq_len=1024)
    assert cost.parameters(model) == 1_170_340_608


@pytest.mark.parametrize("length", [128, 1024])
def test_lfm2_caches_keys_in_its_attention_layers_only(length):
    def bytes_of(config: ModelConfig) -> int:
        return cost.state_bytes(on_meta(config, vocab_size=64, seq_len=length), length)

    dense = ModelConfig(pattern="F", depth=16, d_model=32, n_heads=4)
    convolutions = 10 * 2 * 32 * 4
    assert bytes_of(lfm2(depth=16, d_model=32, n_heads=4)) == bytes_of(dense) * 6 // 16 + convolutions


WIDTH, TIME = 6, 11


def convolution_inputs(batch: int) -> torch.Tensor:
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
    x = convolution_inputs(2)
    y = conv(x, context(x))
    state = conv.init_state(2, dtype=torch.float64)
    assert state.shape == (2, WIDTH, 3)
    for t in range(TIME):
        out, state = conv.extend(x[:, t : t + 1], state)
        torch.testing.assert_close(out[:, 0], y[:, t], rtol=0, atol=1e-14)

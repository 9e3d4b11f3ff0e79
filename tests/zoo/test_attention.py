"""Full attention against its definition in plain loops, fp64, with every option."""

import math

import pytest
import torch
from support.contract_cases import normed, randomised, tokens, turned
from torch import Tensor

from zoo import Context, Dims, LanguageModel, ModelConfig
from zoo.mixers.attention import Attention, AttentionConfig
from zoo.modules.caches import KVCache

D, H, K, T = 24, 4, 6, 11


OPTIONS = {
    "plain": {},
    "grouped": {"n_kv_heads": 2},
    "multi_query": {"n_kv_heads": 1},
    "own_heads": {"n_heads": 2},
    "window": {"window": 3},
    "window_of_one": {"window": 1},
    "qk_norm": {"qk_norm": True},
    "biases": {"qkv_bias": True, "n_kv_heads": 2, "value_gate": True},
    "no_positions": {"positions": "none"},
    "rope_base": {"rope_base": 50.0},
    "output_gate": {"output_gate": True},
    "value_gate": {"value_gate": True, "n_kv_heads": 2},
    "everything": {
        "n_kv_heads": 2,
        "window": 4,
        "qkv_bias": True,
        "qk_norm": True,
        "rope_base": 100.0,
        "output_gate": True,
        "value_gate": True,
    },
}


def mixer(**options) -> Attention:
    """An attention with random weights, gains and biases."""
    return randomised(Attention(AttentionConfig(**options), Dims(D, H, seq_len=8, layer=0, depth=2)))


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def by_definition(m: Attention, config: AttentionConfig, x: Tensor) -> Tensor:
    """One sequence x [T, D] -> y [T, D], a query, a head and a key at a time."""
    heads = config.n_heads or H
    kv_heads = config.n_kv_heads or heads
    width = D // heads

    def projected(projection, t: int) -> Tensor:
        out = projection.weight @ x[t]
        return out + projection.bias if config.qkv_bias else out

    def vector(projection, t: int, head: int, norm=None) -> Tensor:
        out = projected(projection, t)[head * width : (head + 1) * width]
        if norm is not None:
            out = normed(out, norm.weight)
        return turned(out, t, config.rope_base) if config.positions == "rope" else out

    def gate(g, t: int) -> Tensor:
        return 1 / (1 + torch.exp(-(g.weight @ x[t] + g.bias)))

    rows = []
    for t in range(T):
        outs = []
        for h in range(heads):
            shared = h * kv_heads // heads
            first = 0 if config.window is None else max(0, t - config.window + 1)
            q = vector(m.q_proj, t, h, m.q_norm if config.qk_norm else None)
            scores, values = [], []
            for s in range(first, t + 1):
                k = vector(m.k_proj, s, shared, m.k_norm if config.qk_norm else None)
                v = projected(m.v_proj, s)
                if config.value_gate:
                    v = v * gate(m.value_gate, s)
                scores.append((q @ k) / math.sqrt(width))
                values.append(v[shared * width : (shared + 1) * width])
            weights = torch.stack(scores).exp()
            outs.append((weights / weights.sum()) @ torch.stack(values))
        o = torch.cat(outs)
        if config.output_gate:
            o = o * gate(m.output_gate, t)
        rows.append(m.o_proj.weight @ o)
    return torch.stack(rows)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.no_grad()
def test_attention_is_its_definition(options):
    m, x = mixer(**options), inputs()
    y, aux = m(x, Context.of(x[..., 0]))
    assert aux == {}
    wanted = torch.stack([by_definition(m, AttentionConfig(**options), row) for row in x])
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("heads", "wanted"), [(1, 1), (2, 1), (4, 2), (7, 1), (8, 4), (12, 6), (16, 8), (24, 8), (32, 8), (36, 6)]
)
def test_at_most_so_many_kv_heads_that_divide_the_heads_and_are_fewer(heads, wanted):
    dims = Dims(2 * heads, heads, seq_len=8, layer=0, depth=2)
    m = Attention(AttentionConfig(max_kv_heads=8), dims)
    assert (m.kv_heads, m.k_proj.out_features) == (wanted, 2 * wanted)
    assert Attention(AttentionConfig(max_kv_heads=8, n_kv_heads=1), dims).kv_heads == 1
    assert Attention(AttentionConfig(), dims).kv_heads == heads


def test_options_are_off_by_default():
    m = Attention(AttentionConfig(), Dims(D, H, seq_len=8, layer=0, depth=2))
    assert {name for name, _ in m.named_parameters()} == {f"{p}_proj.weight" for p in "qkvo"}
    assert m.window is None


@torch.no_grad()
def test_a_window_bounds_the_state_and_forgets():
    config = ModelConfig(pattern="F", depth=1, d_model=D, n_heads=H)
    config.mixers.attention.window = 3
    model = LanguageModel(config, vocab_size=29, seq_len=8).double().eval()
    state = model.init_state(1)
    for token in tokens(1, 200).unbind(1):
        logits, state = model.step(token, state)
    keys, values = state.layers[0].read()
    assert keys.shape == values.shape == (1, H, 3, K)
    assert all(storage.shape[2] < 50 for storage in state.layers[0].storage)
    ending = tokens(1, 200)[:, -3:]
    torch.testing.assert_close(logits, model(ending)[0][:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("capacity", [0, 2, 5])
@pytest.mark.parametrize("window", [None, 3])
def test_a_cache_keeps_the_last_rows_however_often_it_grows(window, capacity):
    cache = KVCache(1, 1, 1, capacity=capacity, window=window)
    for t in range(60):
        row = torch.full((1, 1, 1), float(t))
        cache.append(row, -row)
        wanted = list(range(0 if window is None else max(0, t + 1 - window), t + 1))
        keys, values = cache.read()
        assert keys.flatten().tolist() == wanted
        assert (-values).flatten().tolist() == wanted


def test_a_watched_projection_is_called():
    """A hook on one of q, k and v sees its output in training too."""
    model = LanguageModel(ModelConfig(pattern="F", depth=1, d_model=16, n_heads=2), vocab_size=9, seq_len=8)
    seen = []
    model.layers[0].mixer.k_proj.register_forward_hook(lambda _, given, out: seen.append(out.shape))
    model.train()(torch.zeros(1, 8, dtype=torch.int64))
    assert seen == [(1, 8, 16)]

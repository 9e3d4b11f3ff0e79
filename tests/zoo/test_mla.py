"""Multi-head latent attention: definition, absorbed decoding, the cache against that of full attention."""

import dataclasses
import math

import pytest
import torch
from support.contract_cases import normed, randomised, turned
from support.watch import Watch
from torch import Tensor

from zoo import Context, Dims, ModelConfig, cost
from zoo.config import from_dict
from zoo.mixers.mla import MLA, MLAConfig
from zoo.model import on_meta

D, H, T = 24, 3, 9
WIDTH = D // H

OPTIONS = {
    "defaults": {},
    "no_positions": {"rope_dim": 0},
    "own_sizes": {"kv_rank": 5, "q_rank": 7, "rope_dim": 6, "rope_base": 20.0},
    "own_heads": {"n_heads": 2},
    "latent_wider_than_heads": {"kv_rank": 40},
    "key_a_head": {"rope_keys": "per_head"},
    "direct_query": {"q_rank": 0, "head_width": 5, "value_width": 7},
    "unrotated_key": {"positions": "none", "rope_dim": 6, "value_width": 5},
    "scores": {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_length": 16, "rope_mscale_all": 2.0},
    "key_a_head_own_sizes": {"rope_keys": "per_head", "n_heads": 2, "kv_rank": 5, "rope_dim": 6},
}


def mixer(**options) -> MLA:
    return randomised(MLA(MLAConfig(**options), Dims(D, H, seq_len=T, layer=0, depth=2)))


def inputs(time: int = T, batch: int = 2) -> Tensor:
    return torch.randn(batch, time, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def forward(m: MLA, x: Tensor) -> Tensor:
    return m(x, Context.of(torch.zeros(x.shape[:2], dtype=torch.int64)))[0]


def decoded(m: MLA, x: Tensor) -> tuple[Tensor, object]:
    """All tokens one by one: the outputs [B, T, D] and the state after them."""
    state = m.init_state(len(x), dtype=x.dtype)
    outputs = []
    for token in x.split(1, 1):
        y, state = m.extend(token, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def by_definition(m: MLA, x: Tensor, on_scores: float) -> Tensor:
    """One sequence x [T, D] -> y [T, D], a query, a head and a key at a time."""
    c_q = [row if m.q_up.in_features == D else normed(m.q_down.weight @ row, m.q_norm.weight) for row in x]
    c_kv = [normed(m.kv_down.weight @ row, m.kv_norm.weight) for row in x]

    def part(projection, source: Tensor, head: int) -> Tensor:
        return projection.weight.view(m.heads, -1, source.shape[0])[head] @ source

    def placed(x: Tensor, t: int) -> Tensor:
        if m.rotate is None:
            return x
        return m.rotate((x.view(1, 1, 1, -1),), torch.tensor([t]))[0].flatten()

    def query(t: int, head: int) -> Tensor:
        content = part(m.q_up, c_q[t], head)
        if m.q_rope is None:
            return content
        return torch.cat([content, placed(part(m.q_rope, c_q[t], head), t)])

    def key(s: int, head: int) -> Tensor:
        content = part(m.k_up, c_kv[s], head)
        if m.k_rope is None:
            return content
        own = part(m.k_rope, x[s], head) if m.key_heads > 1 else m.k_rope.weight @ x[s]
        return torch.cat([content, placed(own, s)])

    rows = []
    for t in range(len(x)):
        heads = []
        for head in range(m.heads):
            q = query(t, head)
            scores = torch.stack([q @ key(s, head) for s in range(t + 1)])
            scores = scores * on_scores / math.sqrt(len(q))
            values = torch.stack([part(m.v_up, c_kv[s], head) for s in range(t + 1)])
            heads.append(scores.softmax(0) @ values)
        rows.append(m.o_proj.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("case", OPTIONS)
@torch.no_grad()
def test_expanded_form_is_the_definition(case):
    m, x = mixer(**OPTIONS[case]), inputs()
    on_scores = (0.1 * 2.0 * math.log(4.0) + 1) ** 2 if case == "scores" else 1.0
    wanted = torch.stack([by_definition(m, sequence, on_scores) for sequence in x])
    torch.testing.assert_close(forward(m, x), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", OPTIONS)
@torch.no_grad()
def test_absorbed_equals_expanded(case):
    """Claim: W_UK and W_UV can move from the keys to the query and the output, exactly."""
    m, x = mixer(**OPTIONS[case]), inputs(time=40)
    torch.testing.assert_close(decoded(m, x)[0], forward(m, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("keys", ["shared", "per_head"])
@torch.no_grad()
def test_both_forms_of_reading_a_cache_agree_for_several_tokens(keys):
    m, x = mixer(rope_keys=keys), inputs(time=12)
    at = torch.arange(12)
    rows, queries = torch.cat(m._latents(x, at), -1), [q[:, 8:] for q in m._queries(x, at)]
    torch.testing.assert_close(m._absorbed(*queries, rows), m._expanded(*queries, rows), rtol=0, atol=1e-10)


@torch.no_grad()
def test_every_head_turns_its_own_key():
    """Another W_KR of the second head changes what that head reads, and nothing of the first and third."""
    m, x = mixer(rope_keys="per_head"), inputs()
    assert m.k_rope.weight.shape == (H * m.rope_dim, D)
    m.o_proj.weight.copy_(torch.eye(D))
    before = forward(m, x).unflatten(-1, (H, WIDTH))
    m.k_rope.weight[m.rope_dim : 2 * m.rope_dim] += 1.0
    moved = (forward(m, x).unflatten(-1, (H, WIDTH)) - before).abs().amax((0, 1, 3)) > 1e-6
    assert moved.tolist() == [False, True, False]


@torch.no_grad()
def test_the_cache_is_the_normalised_latent_and_the_rotated_key():
    m, x = mixer(), inputs()
    _, state = decoded(m, x)
    (rows,) = state.read()
    assert rows.shape == (2, T, m.kv_rank + m.rope_dim)
    for b in range(2):
        for t in range(T):
            latent = normed(m.kv_down.weight @ x[b, t], m.kv_norm.weight)
            key = turned(m.k_rope.weight @ x[b, t], t, m.rope_base)
            torch.testing.assert_close(rows[b, t], torch.cat([latent, key]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", ["shared", "per_head"])
@torch.no_grad()
def test_decoding_never_expands_the_cache(keys):
    """Nothing larger than the cache itself is made: no keys or values of all heads, no d'_c × d_c product."""
    m = MLA(MLAConfig(rope_keys=keys, rope_dim=2), Dims(64, 8, seq_len=T, layer=0, depth=2))
    tokens = 200
    state = m.init_state(1, capacity=tokens)
    x = torch.randn(tokens, 1, 64, generator=torch.Generator().manual_seed(0))
    for token in x[:-1]:
        _, state = m.extend(token[:, None], state)
    with Watch() as watch:
        m.extend(x[-1][:, None], state)
    assert watch.largest <= tokens * (m.kv_rank + m.key_heads * m.rope_dim) < tokens * 64


def cache_bytes(config: ModelConfig, length: int) -> int:
    return cost.state_bytes(on_meta(config, vocab_size=64, seq_len=length), length)


SIZES = {
    "reference": ModelConfig(pattern="L", depth=14, d_model=768, n_heads=12),
    "small": ModelConfig(pattern="L", depth=4, d_model=64, n_heads=4),
    "without positions": from_dict(
        ModelConfig,
        {"pattern": "L", "depth": 2, "d_model": 96, "n_heads": 6, "mixers": {"mla": {"rope_dim": 0}}},
    ),
    "a key a head": from_dict(
        ModelConfig,
        {
            "pattern": "L",
            "depth": 2,
            "d_model": 96,
            "n_heads": 6,
            "mixers": {"mla": {"rope_keys": "per_head"}},
        },
    ),
}


@pytest.mark.parametrize("length", [1024, 8192])
@pytest.mark.parametrize("size", SIZES)
def test_cache_bytes_against_full_attention(size, length):
    """d_c + d_R numbers a token and layer, or d_c + H·d_R, where full attention holds 2·H·K = 2·D of them."""
    config = SIZES[size]
    model = on_meta(config, vocab_size=64, seq_len=length)
    mixer = model.layers[0].mixer
    mla, full = (cache_bytes(dataclasses.replace(config, pattern=p), length) for p in "LF")
    keys = config.n_heads if config.mixers.mla.rope_keys == "per_head" else 1
    numbers = mixer.kv_rank + keys * mixer.rope_dim
    assert mla == config.depth * length * numbers * 4
    assert mla / full == pytest.approx(numbers / (2 * config.d_model), rel=1e-12)

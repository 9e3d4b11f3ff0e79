"""PaTH attention with forgetting as a mixer: its special cases, its start, its decode state, its size."""

import dataclasses

import pytest
import torch
from support.contract_cases import build, tokens

from zoo import Context, ModelConfig
from zoo.interfaces import Dims
from zoo.mixers.path_fox import PathFox, PathFoxConfig

OFF = {"householder": False, "forget_gate": False}
VARIANTS = {
    "default": {},
    "path": {"forget_gate": False},
    "fox": {"householder": False},
    "neither": OFF,
    "grouped": {"n_kv_heads": 2, "rank": 3},
    "fox, grouped": {"n_kv_heads": 1, "householder": False},
}


def config(pattern: str = "P", **options) -> ModelConfig:
    made = ModelConfig(pattern=pattern, depth=2, d_model=32, n_heads=4)
    made.mixers.path_fox = dataclasses.replace(made.mixers.path_fox, **options)
    return made


def mixer(d_model: int = 32, heads: int = 4, **options) -> PathFox:
    return PathFox(PathFoxConfig(**options), Dims(d_model, heads, 16, 0, 2))


@pytest.mark.parametrize("backend", ["reference", "triton"])
@torch.no_grad()
def test_backends_decode_alike(backend):
    """Through the whole mixer, in fp32 (Triton's interpreter knows no fp64), while the cache grows."""
    made = config(n_kv_heads=2)
    made.depth = 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(0)).to(device)
    outs = []
    for name in ("torch", backend):
        made.backend = name
        one = build(made, dtype=torch.float32).to(device).layers[0].mixer.eval()
        state, ys = one.init_state(2, capacity=2, device=device), []
        for x_t in x:
            y, state = one.extend(x_t[:, None], state)
            ys.append(y[:, 0])
        outs.append([torch.stack(ys), *state.cache.read()])
    torch.testing.assert_close(
        *outs, rtol=1e-5, atol=1e-5
    )  # sums of 32 products about 1, some layers of them


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_backends_agree_inside_a_model(options):
    made = config(**options)
    batch = tokens(1, 12)
    ctx = Context.of(batch, torch.tensor([0, 5, 12], dtype=torch.int32))
    outs = []
    for backend in ("torch", "reference"):
        model = build(dataclasses.replace(made, backend=backend))
        logits, _ = model(batch, ctx)
        logits.square().mean().backward()
        grads = [p.grad for p in model.parameters()]
        assert all(grad is not None and grad.any() for grad in grads)
        outs.append([logits, *grads])
    torch.testing.assert_close(*outs, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_cached_keys_are_turned_before_the_new_one_is_appended():
    one = mixer().double().eval()
    x = torch.randn(2, 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = one.init_state(2, dtype=torch.float64)
    for t in range(3):
        _, state = one.extend(x[:, t : t + 1], state)
    k = one.k_proj(x).unflatten(-1, (4, 8))
    w, beta = one.turn(x, Context.of(torch.zeros(2, 3, dtype=torch.int64)))
    g = one._log_gate(x)
    keys, _, forgotten = state.cache.read()
    torch.testing.assert_close(keys[:, :, 2], k[:, 2])
    h = torch.eye(8) - beta[..., None, None] * w[..., :, None] * w[..., None, :]
    torch.testing.assert_close(keys[:, :, 1], (h[:, 2] @ k[:, 1, ..., None])[..., 0])
    torch.testing.assert_close(keys[:, :, 0], (h[:, 2] @ h[:, 1] @ k[:, 0, ..., None])[..., 0])
    wanted = torch.stack([g[:, 1] + g[:, 2], g[:, 2], torch.zeros(2, 4)], -1)
    torch.testing.assert_close(forgotten[..., 0], wanted)


def test_the_state_holds_turned_keys_in_at_least_fp32():
    bytes_of = lambda one, dtype: one.state_bytes(one.init_state(1, capacity=10, dtype=dtype))  # noqa: E731
    taps = 32 * 2
    assert bytes_of(mixer(), torch.float32) == 4 * (2 * 10 * 32 + 10 * 4 + taps)
    assert bytes_of(mixer(), torch.bfloat16) == 4 * 10 * 32 + 2 * 10 * 32 + 4 * 10 * 4 + 2 * taps
    assert bytes_of(mixer(**OFF), torch.bfloat16) == 2 * 2 * 10 * 32
    assert bytes_of(mixer(n_kv_heads=1, forget_gate=False), torch.float32) == 4 * (2 * 10 * 8 + 8 * 2)

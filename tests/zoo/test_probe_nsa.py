"""What N shows a probe, against loops over its three branches as the paper writes them."""

import math

import torch
from support.contract_cases import randomised
from torch import Tensor

import kernels
from zoo import Context
from zoo.interfaces import Dims
from zoo.mixers.nsa import NSA, NSAConfig
from zoo.probes import Probe, ProbeEvent

WIDTH, HEADS, KV, TIME = 16, 4, 2, 27
BLOCK, STRIDE, SELECT, N, WINDOW = 4, 2, 4, 4, 5
K = WIDTH // HEADS


def mixer() -> NSA:
    sizes = NSAConfig(
        n_kv_heads=KV, block_size=BLOCK, stride=STRIDE, select_size=SELECT, n_select=N, window=WINDOW
    )
    return randomised(NSA(sizes, Dims(WIDTH, HEADS, TIME, 0, 1)))


def softmax(scores: list[Tensor]) -> list[float]:
    top = max(float(s) for s in scores)
    exps = [math.exp(float(s) - top) for s in scores]
    return [e / sum(exps) for e in exps]


def chosen_blocks(p: dict[int, list[float]], t: int) -> set[int]:
    """{0, b − 1, b} and the highest I_tj = Σ_g Σ_i p_gi·|block i ∩ block j|/l; p: of the group's heads by name."""
    own = t // SELECT
    importance = {}
    for j in range(own - 1):
        span = range(j * SELECT, (j + 1) * SELECT)
        importance[j] = sum(
            head[i] * len(set(range(i * STRIDE, i * STRIDE + BLOCK)) & set(span)) / BLOCK
            for head in p.values()
            for i in range(len(head))
        )
    forced = {j for j in (0, own - 1, own) if j >= 0}
    others = sorted((j for j in importance if j not in forced), key=lambda j: -importance[j])
    return forced | set(others[: N - len(forced)])


def spread(p: list[float]) -> Tensor:
    """Weights of blocks as weights of tokens."""
    row = torch.zeros(TIME, dtype=torch.float64)
    for i, weight in enumerate(p):
        for s in range(i * STRIDE, i * STRIDE + BLOCK):
            row[s] += weight / BLOCK
    return row


def over(tokens: list[int], scores: Tensor) -> Tensor:
    row = torch.zeros(TIME, dtype=torch.float64)
    for s, weight in zip(tokens, softmax([scores[s] for s in tokens]), strict=True):
        row[s] = weight
    return row


@torch.no_grad()
def by_loops(made: NSA, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Map [H, T, T], selection [H, T, T], gates [T, H, 3] and output [T, D] for x [1, T, D]."""
    place = torch.arange(TIME)[None]
    q = (x @ made.q_proj.weight.T).unflatten(-1, (HEADS, K))
    k, v = ((x @ w.weight.T).unflatten(-1, (3, KV, K)) for w in (made.k_proj, made.v_proj))
    turned = kernels.rope(q, place, 1e4)[0]
    keys = [kernels.rope(k[:, :, c], place, 1e4)[0] for c in (1, 2)]
    starts = range(0, TIME - BLOCK + 1, STRIDE)
    k_blocks, v_blocks = (
        torch.stack([phi(y[0, s : s + BLOCK, 0].transpose(0, 1)) for s in starts])
        for phi, y in ((made.compress_k, k), (made.compress_v, v))
    )
    gates = (1 / (1 + (-(x @ made.gate_proj.weight.T + made.gate_proj.bias)).exp()))[0].unflatten(-1, (-1, 3))
    maps, selected = torch.zeros(2, HEADS, TIME, TIME, dtype=torch.float64)
    out = torch.zeros(TIME, HEADS, K, dtype=torch.float64)
    for t in range(TIME):
        visible = [i for i, s in enumerate(starts) if s + BLOCK - 1 <= t]
        p = {
            h: softmax([q[0, t, h] @ k_blocks[i, h // (HEADS // KV)] / K**0.5 for i in visible])
            if visible
            else []
            for h in range(HEADS)
        }
        for h in range(HEADS):
            kv = h // (HEADS // KV)
            group = {g: p[g] for g in range(HEADS) if g // (HEADS // KV) == kv}
            blocks = chosen_blocks(group, t)
            fine = [s for s in range(t + 1) if s // SELECT in blocks]
            near = [s for s in range(t + 1) if t - s < WINDOW]
            rows = [spread(p[h])]
            rows += [
                over(s, turned[t, h] @ y[:, kv].T / K**0.5) for s, y in zip((fine, near), keys, strict=True)
            ]
            total = sum(gate * row for gate, row in zip(gates[t, h], rows, strict=True))
            maps[h, t], selected[h, t, fine] = total / total.sum(), 1
            coarse = sum((w * v_blocks[i, kv] for i, w in zip(visible, p[h], strict=True)), torch.zeros(K))
            read = (coarse, rows[1] @ v[0, :, 1, kv], rows[2] @ v[0, :, 2, kv])
            out[t, h] = sum(gate * o for gate, o in zip(gates[t, h], read, strict=True))
    return maps, selected.bool(), gates, out.flatten(1) @ made.o_proj.weight.T


def test_maps_gates_and_selection_are_those_of_the_loops():
    made = mixer()
    x = torch.randn(1, TIME, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    seen: list[ProbeEvent] = []
    y, _ = made(x, Context.of(x[..., 0], probe=Probe(seen.append, place={"layer": 0, "part": "mixer"})))
    shown = {event.kind: event.values for event in seen}
    maps, selected, gates, wanted = by_loops(made, x)
    torch.testing.assert_close(y[0], wanted, msg="the loops are not this mixer")
    torch.testing.assert_close(shown["attention"]["weights"][0], maps)
    assert torch.equal(shown["selection"]["selected"][0], selected)
    assert not torch.equal(selected[0], selected[-1]), "both groups select the same: the test sees little"
    for place, name in enumerate(("compressed", "selected", "window")):
        torch.testing.assert_close(shown["gates"][name][0], gates[..., place])
    assert not any(gate.requires_grad for gate in shown["gates"].values())

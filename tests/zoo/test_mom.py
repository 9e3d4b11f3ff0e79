"""The mixer `O` against its definition, token by token; its router, its start, its sizes and its decode state."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import randomised
from torch import Tensor

from zoo import Context, Dims
from zoo.mixers.mom import MoM, MoMConfig

D, T = 12, 9
CTX = Context.of(torch.zeros(2, T, dtype=torch.int64))


def mixer(**options) -> MoM:
    """A mixer with random weights and gains: two heads of 4 for every memory."""
    config = MoMConfig(**{"n_heads": 2, "head_width": 4} | options)
    return randomised(MoM(config, Dims(D, 4, seq_len=T, layer=0, depth=2)))


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def parts(m: MoM, x: Tensor, top_beta: float = 1.0) -> list[Tensor]:
    """k, v [T, M, H, K], β and g [T, M, H] of one sequence x [T, D]."""
    k, v = (F.silu(x @ p.weight.T).unflatten(-1, (-1, m.heads, m.width)) for p in (m.k_proj, m.v_proj))
    k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    if m.decay is None:
        return [k, v, torch.ones(k.shape[:3]), torch.zeros(k.shape[:3])]
    beta, raw = ((x @ p.weight.T).unflatten(-1, (-1, m.heads)) for p in (m.beta_proj, m.decay_proj))
    g = -m.decay.A_log.exp() * F.softplus(raw + m.decay.dt_bias)
    return [k, v, top_beta * torch.sigmoid(beta), g]


def by_definition(m: MoM, x: Tensor, options: dict) -> Tensor:
    """y [T, D] of one sequence x [T, D], by the equations of SPEC, every head, memory and token by itself."""
    memories, top_k = options.get("n_memories", 4), options.get("top_k", 2)
    shared = options.get("shared", True)
    update = options.get("update", "gated_delta")
    k, v, beta, g = parts(m, x, 2.0 if options.get("neg_eigval") else 1.0)
    q = F.silu(x @ m.q_proj.weight.T).unflatten(-1, (m.heads, m.width))
    q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    state = torch.zeros(memories + shared, m.heads, m.width, m.width, dtype=torch.float64)
    rows = []
    for t in range(len(x)):
        used = {memories: 1.0} if shared else {}
        p = torch.softmax(x[t] @ m.router.weight.T, 0).tolist() if m.router else [1.0]
        best = sorted(range(memories), key=lambda i: -p[i])[:top_k]
        total = sum(p[i] for i in best) if top_k > 1 else 1.0
        used |= {i: p[i] / total for i in best}
        o = torch.zeros(m.heads, m.width, dtype=torch.float64)
        for i, weight in used.items():
            for h in range(m.heads):
                key, b = k[t, i, h], beta[t, i, h]
                write = torch.outer(key, v[t, i, h])
                if update == "linear":
                    state[i, h] += write
                else:
                    kept = g[t, i, h].exp() * state[i, h]
                    erased = b * torch.outer(key, key) @ kept if update == "gated_delta" else 0
                    state[i, h] = kept - erased + b * write
                o[h] += weight * m.width**-0.5 * state[i, h].T @ q[t, h]
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * m.o_norm.weight
        rows.append(o.flatten() @ m.o_proj.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shared": False},
        {"top_k": 1},
        {"top_k": 4, "neg_eigval": True},
        {"n_memories": 1, "top_k": 1},
        {"update": "gated_linear"},
        {"update": "linear", "top_k": 3},
    ],
    ids=["plain", "not shared", "one route", "all routes, negative", "one memory", "gated linear", "linear"],
)
@torch.no_grad()
def test_forward_is_the_definition(options):
    m, x = mixer(**options), inputs()
    y, aux = m(x, CTX)
    assert set(aux) == (set() if options.get("n_memories") == 1 else {"memory_balance"})
    wanted = torch.stack([by_definition(m, row, options) for row in x])
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_an_unselected_memory_is_bit_identical_after_the_step():
    m = mixer()
    state = torch.randn(1, 5, 2, 4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for token in inputs(1).split(1, 1):
        before = state.clone()
        _, state = m.extend(token, state)
        used = set(torch.topk(token[0, 0] @ m.router.weight.T, 2).indices.tolist()) | {4}
        assert {i for i in range(5) if not torch.equal(state[0, i], before[0, i])} == used


@torch.no_grad()
def test_linear_attention_forgets_nothing_where_gates_forget():
    """One token, then 50 that write nothing into the shared memory: it is as it was, or halved 50 times."""
    x = torch.zeros(1, 51, D, dtype=torch.float64)
    x[:, 0] = inputs(1)[:, 0]
    for update, kept in (("linear", True), ("gated_linear", False)):
        m = mixer(update=update)
        if m.decay is not None:
            m.decay.A_log.fill_(0.0)
            m.decay.dt_bias.fill_(0.0)  # g = −log 2
        states = []
        for part in (x[:, :1], x[:, 1:]):
            _, state = m.extend(part, states[-1].clone() if states else m.init_state(1, dtype=x.dtype))
            states.append(state)
        first, last = (state[0, -1].norm() for state in states)
        torch.testing.assert_close(last, first * (1.0 if kept else 0.5**50))


# Probabilities of four memories, and what of f and p follows by hand for k = 2.
EVEN, FIRST, LAST = (0.3, 0.28, 0.22, 0.2), (0.7, 0.2, 0.06, 0.04), (0.1, 0.15, 0.3, 0.45)
BALANCE = {
    # f = (½, ½, 0, 0): 4·½·(0.7 + 0.2)
    "one token": ([FIRST], None, 1.8),
    # f = ¼ each: 4·¼·1
    "balanced": ([FIRST, LAST], None, 1.0),
    # f = (⅜, ⅜, ⅛, ⅛), p̄_0 + p̄_1 = 0.6575: 4·(⅜·0.6575 + ⅛·0.3425)
    "four tokens": ([FIRST, FIRST, EVEN, LAST], None, 1.1575),
    # The mean of [FIRST] and [EVEN, LAST, LAST]: there f = (⅙, ⅙, ⅓, ⅓), p̄ = (0.5, 0.58, 0.82, 1.1)/3
    "packed": (
        [FIRST, EVEN, LAST, LAST],
        (1, 3),
        (1.8 + 4 * ((0.5 + 0.58) / 3 / 6 + (0.82 + 1.1) / 3 / 3)) / 2,
    ),
}


@pytest.mark.parametrize("case", BALANCE)
def test_the_balance_loss_of_hand_computed_routing(case):
    """4·Σ f·p̄ per sequence, f the share of the 2·T assignments; the mean over sequences, not over tokens."""
    rows, lengths, wanted = BALANCE[case]
    m = mixer()
    with torch.no_grad():
        m.router.weight.copy_(torch.eye(4, D))
    x = F.pad(torch.tensor(rows, dtype=torch.float64).log(), (0, D - 4))[None].requires_grad_()
    cu = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    _, aux = m(x, Context.of(torch.zeros(1, len(rows), dtype=torch.int64), cu))
    assert aux["memory_balance"].item() == pytest.approx(wanted, abs=1e-12)
    if case != "balanced":  # where it does not depend on p
        aux["memory_balance"].backward()
        assert m.router.weight.grad.any()

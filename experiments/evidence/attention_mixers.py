"""Claims 10, 17, 20 and 23: exact properties of attention with gates, latents, paths and three branches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import kernels
from experiments.evidence import measure
from experiments.evidence.numbers import Number, bounded, exact, near
from zoo import Context, Dims, Mixer
from zoo.mixers.attention import Attention, AttentionConfig
from zoo.mixers.gsa import GSA, GSAConfig
from zoo.mixers.mla import MLA, MLAConfig
from zoo.mixers.nsa import NSA, NSAConfig

WIDTH, HEADS, TOKENS = 48, 4, 40
DIMS = Dims(WIDTH, HEADS, seq_len=TOKENS, layer=0, depth=2)
ROUNDING = 1e-10


def randomised(mixer: Mixer, spread: float = 0.3) -> Mixer:
    """The mixer in fp64 and evaluation mode, every parameter random."""
    with torch.no_grad():
        for parameter in mixer.double().parameters():
            parameter.copy_(spread * torch.randn_like(parameter))
    return mixer.eval()


def inputs(time: int = TOKENS) -> Tensor:
    """Random inputs [2, time, WIDTH], fp64."""
    return torch.randn(2, time, WIDTH, dtype=torch.float64)


def outputs(mixer: Mixer, x: Tensor) -> Tensor:
    """The mixer's outputs [B, T, D] of whole sequences x [B, T, D]."""
    with torch.no_grad():
        return mixer(x, Context.of(x[..., 0]))[0]


def difference(a: Tensor, b: Tensor) -> float:
    """The relative difference ‖a − b‖/‖b‖ of tensors [...] of one shape."""
    return ((a - b).norm() / b.norm()).item()


@measure(10)
def first_query_and_its_gate() -> Iterator[Number]:
    """The proposition of bounded attention: max Attn ≤ max σ(gate). The first query sees one key, with weight 1."""
    made, x = randomised(GSA(GSAConfig(warmup=0), DIMS), spread=0.05), inputs()
    with torch.no_grad():
        q, k, _, gate = made._inputs(x, torch.arange(TOKENS).expand(2, -1))
    logits = q[:, 0] @ k[:, 0].repeat_interleave(q.shape[2] // k.shape[2], 1).mT
    weight = logits.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).softmax(-1)
    yield exact("largest attention weight of a first token", weight.max().item())
    yield near("largest output gate", torch.sigmoid(gate).max().item())


@measure(17)
def absorbed_against_expanded() -> Iterator[Number]:
    """MLA token by token from its latent cache, in absorbed form, against whole sequences in expanded form; fp64."""
    made, x = randomised(MLA(MLAConfig(), DIMS)), inputs()
    state, decoded = made.init_state(2, dtype=x.dtype), []
    with torch.no_grad():
        for token in x.split(1, 1):
            y, state = made.extend(token, state)
            decoded.append(y)
    yield bounded(
        "absorbed against expanded, relative", difference(torch.cat(decoded, 1), outputs(made, x)), ROUNDING
    )


def swaps(count: int, items: int) -> tuple[Tensor, Tensor]:
    """Random swaps of items: w [count, items], I − 2wwᵀ the swap, and the order after each."""
    w, order, orders = torch.zeros(count, items, dtype=torch.float64), torch.arange(items), []
    for t in range(count):
        i, j = torch.randperm(items)[:2].tolist()
        w[t, i], w[t, j] = 0.5**0.5, -(0.5**0.5)
        order = order.clone()
        order[[i, j]] = order[[j, i]]
        orders.append(order)
    return w, torch.stack(orders)


@measure(20)
def states_by_construction() -> Iterator[Number]:
    """Measure what PaTH and FoX can hold: a permutation of five items, as a product of reflections; decaying weights.

    The key of item 0 before 100 swaps, along the path, is the place where the item is now. A forget gate f multiplies
    the weight of a token n steps back by fⁿ.
    """
    items, count = 5, 100
    w, orders = swaps(count, items)
    q, k, v = torch.zeros(3, 1, count + 1, 1, items, dtype=torch.float64)
    k[0, 0, 0, 0], v[0, 0, 0, 0] = 1.0, 1.0  # token 0 stands for item 0; no other token has a key or a value
    places = torch.cat([torch.zeros(1).long(), (orders == 0).nonzero()[:, 1]])
    q[0, torch.arange(count + 1), 0, places] = 100.0  # every token asks whether the item is where it is
    path = torch.cat([w[:1], w])[None, :, None], torch.full((1, count + 1, 1), 2.0, dtype=torch.float64)
    states = kernels.path_attention(q, k, v, *path, scale=1.0)[0, :, 0, 0]
    yield bounded(
        "PaTH: weight missing where an item is after up to 100 swaps of five",
        (states - 1).abs().max(),
        ROUNDING,
    )
    steps, gate = 8, 0.5
    zeros = torch.zeros(1, steps + 1, 1, 4, dtype=torch.float64)
    values = torch.eye(steps + 1, dtype=torch.float64)[None, :, None]
    g = torch.full((1, steps + 1, 1), gate, dtype=torch.float64).log()
    weights = kernels.path_attention(zeros, zeros, values, None, None, g)[0, -1, 0]
    decayed = weights[0] / weights[-1] / gate**steps - 1
    yield bounded("FoX: relative error of a weight 8 tokens back, against f⁸", decayed.abs(), ROUNDING)


def only_selection(made: NSA) -> NSA:
    """The mixer with the gate of its selection at 1 and the others at 0."""
    with torch.no_grad():
        made.gate_proj.weight.zero_()
        made.gate_proj.bias.view(HEADS, 3).fill_(-1e4)[:, 1] = 1e4
    return made


def dense_twin(made: NSA) -> Attention:
    """Full attention with the queries, keys and values of the selection."""
    other = Attention(AttentionConfig(n_kv_heads=made.kv_heads), DIMS).double()
    with torch.no_grad():
        for mine, theirs in ((other.k_proj, made.k_proj), (other.v_proj, made.v_proj)):
            mine.weight.copy_(theirs.weight.view(3, -1, WIDTH)[1])
        other.q_proj.weight.copy_(made.q_proj.weight)
        other.o_proj.weight.copy_(made.o_proj.weight)
    return other


@measure(23)
def branches_of_nsa() -> Iterator[Number]:
    """Causality by perturbing every token in turn, the gated sum of the branches, and selection of all blocks."""
    sizes = {"block_size": 4, "stride": 2, "select_size": 4, "window": 5, "n_kv_heads": 2}
    made, x = randomised(NSA(NSAConfig(n_select=4, **sizes), DIMS)), inputs()
    usual, leaked = outputs(made, x), 0.0
    for t in range(TOKENS):
        other = x.clone()
        other[:, t] += 1.0
        leaked = max(leaked, (outputs(made, other)[:, :t] - usual[:, :t]).abs().amax().item() if t else 0.0)
    yield bounded("largest change before a changed token", leaked, ROUNDING)
    full = only_selection(randomised(NSA(NSAConfig(n_select=TOKENS // 4, **sizes), DIMS)))
    yield bounded(
        "all blocks selected, against full attention",
        difference(outputs(full, x), outputs(dense_twin(full), x)),
        ROUNDING,
    )

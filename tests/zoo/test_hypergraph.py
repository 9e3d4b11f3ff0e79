"""HyperGraph against SPEC `S`, term by term in plain loops, fp64."""

import math

import pytest
import torch
from support.contract_cases import keys, randomised, tokens, turned
from torch import Tensor

import kernels
from zoo import Context, Dims, LanguageModel, ModelConfig
from zoo.mixers.hypergraph import HyperGraph, HyperGraphConfig

D, H, K, T, LAYER = 16, 2, 8, 13, 3


def mixer(**options) -> HyperGraph:
    """A HyperGraph layer with random weights."""
    return randomised(HyperGraph(HyperGraphConfig(**options), Dims(D, H, seq_len=8, layer=LAYER, depth=4)))


def inputs(batch: int = 3) -> Tensor:
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def softmax(row: Tensor) -> list[float]:
    top = max(row.tolist())
    weights = [math.exp(value - top) for value in row.tolist()]
    return [weight / sum(weights) for weight in weights]


def routes(m: HyperGraph, config: HyperGraphConfig, x: Tensor, noise: Tensor | None):
    """Clean logits L [T][H] and probabilities P [T][H] of one sequence x [T, D]; noise [T, H, G]."""
    clean, probabilities = [], []
    for t in range(len(x)):
        logits = (m.route.weight @ x[t]).view(H, config.n_timelines)
        noisy = logits if noise is None else logits + noise[t].double()
        clean.append(list(logits))
        probabilities.append([softmax(noisy[h] / config.temperature) for h in range(H)])
    return clean, probabilities


def argmax(p: list[float]) -> int:
    return max(range(len(p)), key=p.__getitem__)


def by_definition(m: HyperGraph, config: HyperGraphConfig, x: Tensor, noise: Tensor | None) -> Tensor:
    """One sequence x [T, D] -> y [T, D], a query, a head and a key at a time."""
    _, probabilities = routes(m, config, x, noise)
    timeline = [[argmax(p) for p in row] for row in probabilities]
    rows = []
    for t in range(len(x)):
        outs = []
        for h in range(H):
            seen = [s for s in range(t + 1) if timeline[s][h] == timeline[t][h]]
            place = {s: (seen.index(s) if config.positions == "local" else s) for s in seen}
            head = slice(h * K, (h + 1) * K)
            q = turned((m.q_proj.weight @ x[t])[head], place[t], config.rope_base)
            scores = []
            for s in seen:
                k = turned((m.k_proj.weight @ x[s])[head], place[s], config.rope_base)
                scores.append((q @ k) / math.sqrt(K))
            weights = softmax(torch.stack(scores))
            top = sorted(probabilities[t][h], reverse=True)[: config.top_k]
            w = top[0] / sum(top) if config.top_k > 1 else top[0]
            assert 1 / len(top) <= w <= 1 if config.top_k > 1 else w < 1
            o = sum(a * (m.v_proj.weight @ x[s])[head] for a, s in zip(weights, seen, strict=True))
            outs.append(w * o)
        rows.append(m.o_proj.weight @ torch.cat(outs))
    return torch.stack(rows)


def balance_by_definition(m: HyperGraph, config: HyperGraphConfig, x: Tensor, noise: Tensor | None) -> float:
    """G·Σ f·p − entropy_weight·H(P) + z_weight·logsumexp(L)² of one sequence, mean over heads."""
    clean, probabilities = routes(m, config, x, noise)
    n, groups = len(x), range(config.n_timelines)
    total = 0.0
    for h in range(H):
        share = [sum(argmax(probabilities[t][h]) == g for t in range(n)) / n for g in groups]
        mean = [sum(probabilities[t][h][g] for t in range(n)) / n for g in groups]
        balance = config.n_timelines * sum(f * p for f, p in zip(share, mean, strict=True))
        entropy = sum(-sum(p * math.log(p) for p in probabilities[t][h] if p > 0) for t in range(n)) / n
        z = sum(math.log(sum(math.exp(v) for v in clean[t][h].tolist())) ** 2 for t in range(n)) / n
        total += balance - config.entropy_weight * entropy + config.z_weight * z
    return total / H


OPTIONS = {
    "default": {},
    "global": {"positions": "global"},
    "temperature": {"temperature": 0.4},
    "two_timelines": {"n_timelines": 2, "rope_base": 50.0},
    "one_timeline": {"n_timelines": 1},
    "top_1": {"top_k": 1},
    "top_3": {"top_k": 3, "entropy_weight": 0.0},
    "weights": {"entropy_weight": 0.3, "z_weight": 0.05},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@torch.no_grad()
def test_hypergraph_is_its_definition(options, training):
    """Outputs and auxiliary loss of a batch, by one sequence at a time; noise in training only."""
    m, x, config = mixer(**options).train(training), inputs(), HyperGraphConfig(**options)
    ctx = Context.of(x[..., 0], noise_keys=keys(len(x)))
    y, aux = m(x, ctx)
    noise = kernels.gumbel_noise(ctx.noise_keys, ctx.positions, LAYER, H, config.n_timelines)
    passed = noise if training else [None] * len(x)
    wanted = [by_definition(m, config, row, g) for row, g in zip(x, passed, strict=True)]
    torch.testing.assert_close(y, torch.stack(wanted), rtol=0, atol=1e-9)
    losses = [balance_by_definition(m, config, row, g) for row, g in zip(x, passed, strict=True)]
    assert aux.keys() == {"timeline_balance"}
    assert float(aux["timeline_balance"]) == pytest.approx(sum(losses) / len(losses), abs=1e-9)


@torch.no_grad()
def test_routing_noise_depends_on_key_layer_and_position():
    m, x = mixer().train(), inputs(2)

    def route(noise_keys: Tensor | None, layer: int = LAYER) -> Tensor:
        m.layer = layer
        return m(x, Context.of(x[..., 0], noise_keys=noise_keys))[0]

    one = route(torch.tensor([1, 2]))
    assert torch.equal(one, route(torch.tensor([1, 2])))
    torch.testing.assert_close(
        one[0], route(torch.tensor([1, 3]))[0]
    )  # not by the bit: its tiles hold others
    assert not torch.allclose(one[1], route(torch.tensor([1, 3]))[1])
    assert not torch.allclose(one, route(torch.tensor([1, 2]), layer=LAYER + 1))
    assert not torch.allclose(one, route(None))
    same_token = x[:1, :1].expand(1, T, D)
    _, timeline, _ = m._routes(
        m._logits(same_token)
        + kernels.gumbel_noise(torch.full((1, T), 1), torch.arange(T)[None], LAYER, H, m.timelines)
    )
    assert timeline.unique().numel() > 1


def test_by_default_two_probabilities_count_and_the_loss_has_the_reports_weights():
    config = HyperGraphConfig()
    assert (config.top_k, config.entropy_weight, config.z_weight) == (2, 0.01, 0.01)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_weight_carries_the_router_gradient(top_k):
    """The report's straight-through weight is the renormalised probability itself, in value and gradient."""
    m, x = mixer(top_k=top_k), inputs(1)
    ctx = Context.of(x[..., 0])

    def loss() -> Tensor:
        return m(x, ctx)[0].square().sum()

    (grad,) = torch.autograd.grad(loss(), m.route.weight)
    assert grad.abs().sum() > 0
    for row, column in ((0, 3), (5, 0), (11, 7)):
        with torch.no_grad():
            slope = []
            for sign in (1, -1):
                m.route.weight[row, column] += sign * 1e-6
                slope.append(sign * loss())
                m.route.weight[row, column] -= sign * 1e-6
        assert float(sum(slope)) / 2e-6 == pytest.approx(float(grad[row, column]), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("capacity", [0, 6, 40])
@torch.no_grad()
def test_decoding_keeps_one_list_a_timeline(capacity):
    """A step adds one row to one list of each head; the lists of a head add up to T."""
    m, x = mixer().eval(), inputs(2)
    state = m.init_state(2, capacity=capacity, dtype=torch.float64)
    counted = torch.zeros(2, H, 6, dtype=torch.int64)
    _, timeline, _ = m._routes(m._logits(x))
    for t in range(T):
        _, state = m.extend(x[:, t : t + 1], state)
        counted.scatter_add_(2, timeline[:, t, :, None], torch.ones(2, H, 1, dtype=torch.int64))
        assert torch.equal(state.lengths, counted)
        assert (state.lengths.sum(-1) == t + 1).all()
    assert (counted.count_nonzero(-1) > 1).all()


@torch.no_grad()
def test_the_auxiliary_loss_is_the_mean_over_sparse_layers():
    config = ModelConfig(pattern="SFS", depth=3, d_model=D, n_heads=H)
    model = LanguageModel(config, vocab_size=29, seq_len=8).eval()
    seen = []
    for layer in model.layers:
        layer.mixer.register_forward_hook(lambda _m, _x, out: seen.append(out[1]))
    _, aux = model(tokens(2, 9))
    parts = [part["timeline_balance"] for part in seen if part]
    assert len(parts) == 2
    torch.testing.assert_close(aux["timeline_balance"], sum(parts) / 2)
    assert model.aux_weights == {"timeline_balance": 0.01}
    assert float(model.aux_loss(aux)) == pytest.approx(0.01 * float(aux["timeline_balance"]))

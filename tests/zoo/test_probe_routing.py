"""Loads and certainty of routers against counting; what blocks show a probe against their definitions."""

import math
from collections import Counter

import pytest
import torch
from support.contract_cases import build, randomised, tokens
from torch import Tensor

import kernels
from experiments.probing.held_out import average_rows
from zoo import Context, ModelConfig
from zoo.interfaces import Dims
from zoo.mixers.nsa import NSA, NSAConfig
from zoo.probes import Probe, ProbeEvent, Row, correct_averages, probe_model
from zoo.probes.measures.routing import Routing


def rows_by_key(rows: list[Row]) -> dict[tuple, Row]:
    """Rows by measure, head and first value of the bucket; no two of them may be about the same."""
    found = {(row.measure, row.head, row.start): row for row in rows}
    assert len(found) == len(rows)
    return found


def entropy(numbers: list[float]) -> float:
    return -sum(x * math.log(x) for x in numbers if x > 0)


def counted(p: Tensor, choices: Tensor) -> dict[tuple, tuple[float, int]]:
    """Value and count of every row, from loops over batch, tokens and heads."""
    (batch, time, heads, experts), k = p.shape, choices.shape[-1]
    places = [(b, t) for b in range(batch) for t in range(time)]
    out = {}
    for h in range(heads):
        named = Counter(e for b, t in places for e in choices[b, t, h].tolist())
        load = [named[e] / (len(places) * k) for e in range(experts)]
        mean = sum(named.values()) / experts
        out |= {("load", h, e): (load[e], len(places) * k) for e in range(experts)}
        out["imbalance", h, None] = max(named.values()) / mean, len(places) * k
        out["load_entropy", h, None] = entropy(load), len(places) * k
        surprise = [entropy(p[b, t, h].tolist()) for b, t in places]
        out["routing_entropy", h, None] = sum(surprise) / len(places), len(places)
        best = [p[b, t, h, choices[b, t, h, 0]].item() for b, t in places]
        out["top_probability", h, None] = sum(best) / len(places), len(places)
    return out


@pytest.mark.parametrize(("heads", "experts", "k"), [(1, 5, 2), (3, 4, 1)])
def test_rows_are_what_counting_gives(heads, experts, k):
    generator = torch.Generator().manual_seed(heads)
    p = torch.softmax(3 * torch.randn(2, 7, heads, experts, generator=generator), -1).double()
    p[0, 0, 0] = torch.eye(experts)[1]  # zeros among the probabilities
    choices = p.topk(k, -1).indices % (experts - 1)  # one expert has no load
    event = ProbeEvent("routing", {"probabilities": p, "choices": choices}, 0, "mixer", "hypergraph")
    rows = rows_by_key(list(Routing().update(event)))
    wanted = counted(p, choices)
    assert rows.keys() == wanted.keys()
    for key, (value, count) in wanted.items():
        assert rows[key].value == pytest.approx(value, abs=1e-12), key
        assert rows[key].count == count, key
    assert all(row.axis == ("expert" if row.measure == "load" else "") for row in rows.values())
    assert all(row.end == row.start + 1 for row in rows.values() if row.measure == "load")


def test_imbalance_over_several_batches_is_that_of_all_their_tokens():
    """Two batches that favour different experts: averages of their imbalances would say 2, together it is 1."""
    p = torch.full((1, 4, 1, 2), 0.5).double()
    batches = [torch.full((1, 4, 1, 1), expert) for expert in (0, 1)]
    rows = [
        row
        for choices in batches
        for row in Routing().update(
            ProbeEvent("routing", {"probabilities": p, "choices": choices}, 0, "mixer", "one")
        )
    ]
    found = rows_by_key(correct_averages(average_rows(rows)))
    assert found["imbalance", 0, None].value == 1
    assert found["load_entropy", 0, None].value == pytest.approx(math.log(2))
    assert found["load", 0, 0].value == found["load", 0, 1].value == 0.5
    wanted = counted(torch.cat([p, p]), torch.cat(batches))
    for key, (value, count) in wanted.items():
        assert (found[key].value, found[key].count) == (pytest.approx(value), count)


def routing_of(config: ModelConfig) -> tuple[dict[tuple[str, str], ProbeEvent], dict[str, Tensor], list[Row]]:
    """What the model shows, the normalised input of every sub-block of its one layer, and its rows."""
    model, batch = build(config).eval(), tokens(2, 9)
    layer, events, inputs = model.layers[0], {}, {}
    for part in ("mixer", "channel"):
        getattr(layer, part).register_forward_pre_hook(
            lambda _, args, part=part: inputs.update({part: args[0].detach()})
        )
    look = Probe(lambda event: events.update({(event.part, event.block): event}), {"routing"})
    model(batch, Context.of(batch, probe=look))
    weights = {part: getattr(layer, part).router.weight.detach() for part in ("mixer", "channel")}
    scores = {part: inputs[part] @ weights[part].T for part in weights}
    return events, scores, probe_model(model, batch, names={"routing"})


def test_memories_and_experts_show_what_their_routers_decide():
    config = ModelConfig(pattern="O", depth=1, d_model=12, n_heads=2)
    config.channel.name = "moe"
    config.channel.moe.n_experts = 5
    events, scores, rows = routing_of(config)
    shares = {
        "mixer": torch.softmax(scores["mixer"], -1),
        "channel": torch.sigmoid(scores["channel"]) / torch.sigmoid(scores["channel"]).sum(-1, keepdim=True),
    }
    assert set(events) == {("mixer", "mom"), ("channel", "moe")}
    for (part, _), event in events.items():
        p, choices = event.values["probabilities"], event.values["choices"]
        torch.testing.assert_close(p, shares[part].unsqueeze(2), rtol=0, atol=1e-12)
        for place, ranked in zip(p.flatten(0, 2).tolist(), choices.flatten(0, 2).tolist(), strict=True):
            assert ranked == sorted(range(len(place)), key=lambda e, place=place: -place[e])[:2]
        found = rows_by_key([row for row in rows if row.part == part])
        assert found["imbalance", 0, None].value == pytest.approx(
            counted(p, choices)["imbalance", 0, None][0]
        )


def test_one_memory_has_no_routing():
    config = ModelConfig(pattern="O", depth=1, d_model=12, n_heads=2)
    config.mixers.mom.n_memories = config.mixers.mom.top_k = 1
    assert probe_model(build(config), tokens(1, 4), names={"routing"}) == []


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

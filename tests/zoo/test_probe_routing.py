"""Loads, imbalance and certainty of routers against counting; what the blocks show against their definitions."""

import math
from collections import Counter

import pytest
import torch
from support.contract_cases import build, tokens
from torch import Tensor

from experiments.probing.held_out import average_rows
from zoo import Context, ModelConfig
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

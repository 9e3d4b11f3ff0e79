"""Measures of attention, gates and selection, each against loops over a full softmax."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zoo import LanguageModel, ModelConfig, UserError
from zoo.probes import Measure, ProbeEvent, Row, all_measures, probe_model, register_measure
from zoo.probes.measure import row

BATCH, HEADS, TIME = 2, 2, 21  # positions fall into [0, 16) and [16, 21)
POSITIONS = [(None, None), (0, 16), (16, TIME)]
QUERIES = [(b, t) for b in range(BATCH) for t in range(TIME)]


def causal_softmax(seed: int) -> Tensor:
    """Weights [B, H, T, T] of random scores, by loops."""
    scores = 2 * torch.randn(
        BATCH, HEADS, TIME, TIME, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    out = torch.zeros_like(scores)
    for b in range(BATCH):
        for h in range(HEADS):
            for t in range(TIME):
                total = sum(math.exp(scores[b, h, t, s]) for s in range(t + 1))
                for s in range(t + 1):
                    out[b, h, t, s] = math.exp(scores[b, h, t, s]) / total
    return out


def rows_of(kind: str, values: dict[str, Tensor]) -> dict[tuple, Row]:
    """What the measure of a kind makes of these values, by (measure, head, axis, start, end)."""
    event = ProbeEvent(kind, values, layer=3, part="mixer", block="tiny")
    rows = list(all_measures()[kind]().update(event))
    assert all((row.layer, row.part, row.block) == (3, "mixer", "tiny") for row in rows)
    found = {(row.measure, row.head, row.axis, row.start, row.end): row for row in rows}
    assert len(found) == len(rows), "two rows of one name"
    return found


def check(rows: dict[tuple, Row], wanted: dict[tuple, list[float]]) -> None:
    """The same rows, and each the mean of as many observations as wanted names."""
    assert rows.keys() == wanted.keys()
    for key, observations in wanted.items():
        mean = sum(float(x) for x in observations) / len(observations)
        assert rows[key].value == pytest.approx(mean, rel=1e-6), key
        assert rows[key].count == len(observations), key


def at_positions(name: str, head: int, number, since: int = 0) -> dict[tuple, list[float]]:
    """number(b, t) over all queries t ≥ since, and by position."""
    out = {}
    for start, end in POSITIONS:
        inside = range(max(since, start or 0), TIME if end is None else end)
        key = (name, head, "" if start is None else "position", start, end)
        out[key] = [number(b, t) for b in range(BATCH) for t in inside]
    return out


def test_attention():
    w = causal_softmax(0)
    wanted = {}
    for h in range(HEADS):
        rows = {(b, t): w[b, h, t].tolist() for b, t in QUERIES}
        wanted |= at_positions("first_token_mass", h, lambda b, t, rows=rows: rows[b, t][0], since=1)
        wanted |= at_positions("first_token_uniform", h, lambda b, t: 1 / (t + 1), since=1)
        entropy = {at: -sum(x * math.log(x) for x in row if x) for at, row in rows.items()}
        wanted |= at_positions("attention_entropy", h, lambda b, t, entropy=entropy: entropy[b, t])
        for k in (1, 8):
            top = [sum(sorted(row, reverse=True)[:k]) for row in rows.values()]
            wanted["top_mass", h, "rank", 0, k] = top
        for start, end in [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, TIME)]:
            wanted["distance_mass", h, "distance", start, end] = [
                sum(row[s] for s in range(t + 1) if start <= t - s < end) for (_, t), row in rows.items()
            ]
    found = rows_of("attention", {"weights": w})
    check(found, wanted)
    shares = [row.value for key, row in found.items() if key[0] == "distance_mass" and key[1] == 0]
    assert sum(shares) == pytest.approx(1)


def test_gates():
    """A gate a head, one with several numbers a head, one with fewer heads."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"output": (BATCH, TIME, HEADS, 3), "value": (BATCH, TIME, 1, 3), "window": (BATCH, TIME, HEADS)}
    gates = {name: 0.3 * torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    wanted = {}
    for name, gate in gates.items():
        for h in range(gate.shape[2]):
            numbers = [float(x) for b in range(BATCH) for t in range(TIME) for x in gate[b, t, h].reshape(-1)]
            wanted[f"{name}_gate_mean", h, "", None, None] = numbers
            wanted[f"{name}_gate_low", h, "", None, None] = [x < 0.1 for x in numbers]
    check(rows_of("gates", gates), wanted)


def test_selection():
    generator = torch.Generator().manual_seed(2)
    selected = (torch.rand(BATCH, HEADS, TIME, TIME, generator=generator) < 0.4) | torch.eye(TIME).bool()
    selected, dense = selected.tril(), causal_softmax(3)
    wanted, masses = {}, {}
    late = range((TIME + 1) // 2, TIME)
    for h in range(HEADS):
        sets = {(b, t): [s for s in range(TIME) if selected[b, h, t, s]] for b, t in QUERIES}
        wanted |= at_positions("selected_keys", h, lambda b, t, sets=sets: len(sets[b, t]))
        distances = [t - s for (_, t), keys in sets.items() for s in keys]
        wanted["selected_distance", h, "", None, None] = distances
        alike = {
            (b, t): len({*keys} & {*sets[b, t - 1]}) / len({*keys} | {*sets[b, t - 1]})
            for (b, t), keys in sets.items()
            if t
        }
        wanted |= at_positions("selected_overlap", h, lambda b, t, alike=alike: alike[b, t], since=1)
        for size in (2, 16):
            tiles = [
                [sets[b, t] for t in range(start, start + size)]
                for b in range(BATCH)
                for start in range(0, TIME - size + 1, size)
            ]
            wanted[f"selected_union_{size}", h, "", None, None] = [
                len(set().union(*tile)) * size / sum(map(len, tile)) for tile in tiles
            ]
        held = {
            (b, t): sum(float(dense[b, g, t, s]) for g in range(HEADS) for s in keys) / HEADS
            for (b, t), keys in sets.items()
        }
        masses |= at_positions("selected_mass", h, lambda b, t, held=held: held[b, t])
        masses |= at_positions("selected_mass_random", h, lambda b, t, sets=sets: len(sets[b, t]) / (t + 1))
        masses["selected_mass", h, "", None, None] = [held[b, t] for b in range(BATCH) for t in late]
        masses["selected_mass_random", h, "", None, None] = [
            len(sets[b, t]) / (t + 1) for b in range(BATCH) for t in late
        ]
    check(rows_of("selection", {"selected": selected}), wanted)
    check(rows_of("selection", {"selected": selected, "dense": dense}), wanted | masses)


def test_one_token_has_no_choice():
    """A query alone: no first-token rows, and no bucket without observations."""
    found = rows_of("attention", {"weights": torch.ones(1, 1, 1, 1)})
    assert {key[0] for key in found} == {"top_mass", "attention_entropy", "distance_mass"}
    assert all(row.count == 1 for row in found.values())


@torch.no_grad()
def test_first_token_mass_of_a_model_is_that_of_its_softmax():
    """From the model's weights alone: embedding, norm, q and k of an attention without positions, softmax."""
    config = ModelConfig(pattern="FLPNGS", depth=6, d_model=16, n_heads=HEADS)
    config.mixers.attention.positions = "none"
    config.mixers.gsa.warmup = 0
    model = LanguageModel(config, vocab_size=11, seq_len=TIME).double()
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4))
    tokens = torch.randint(11, (BATCH, TIME), generator=torch.Generator().manual_seed(5))
    rows = probe_model(model, tokens, names=("attention", "gates", "selection"))

    layer = model.layers[0]
    x = model.embedding.weight[tokens]
    x = x / x.square().mean(-1, keepdim=True).sqrt() * layer.mixer_norm.weight
    q, k = ((x @ p.weight.T).unflatten(-1, (HEADS, -1)) for p in (layer.mixer.q_proj, layer.mixer.k_proj))
    for h in range(HEADS):
        first = []
        for b in range(BATCH):
            for t in range(1, TIME):
                exps = [math.exp(q[b, t, h] @ k[b, s, h] / 8**0.5) for s in range(t + 1)]
                first.append(exps[0] / sum(exps))
        (row,) = (
            row
            for row in rows
            if (row.layer, row.head, row.axis, row.measure) == (0, h, "", "first_token_mass")
        )
        assert row.value == pytest.approx(sum(first) / len(first), rel=1e-4)

    shown = {(row.block, row.measure) for row in rows}
    everywhere = {block for block, name in shown if name == "first_token_mass"}
    assert everywhere == {"attention", "mla", "path_fox", "nsa", "gsa", "hypergraph"}
    assert {block for block, name in shown if name == "selected_keys"} == {"nsa", "gsa"}
    assert {block for block, name in shown if name == "selected_mass"} == {"gsa"}
    assert {name for block, name in shown if block == "nsa" and name.endswith("gate_mean")} == {
        "compressed_gate_mean",
        "selected_gate_mean",
        "window_gate_mean",
    }


def of_attention() -> LanguageModel:
    return LanguageModel(ModelConfig(pattern="F", depth=2, d_model=16, n_heads=2), vocab_size=8, seq_len=8)


def of_streams(name: str, kind: str, rows: Callable[[ProbeEvent], list[Row]]) -> type[Measure]:
    return type(name, (Measure,), {"name": name, "kinds": (kind,), "update": lambda self, event: rows(event)})


def test_two_measures_may_not_give_rows_of_one_name(monkeypatch):
    """Tables would average them."""
    model, tokens = of_attention(), torch.zeros(1, 4, dtype=torch.int64)
    both = {
        name: of_streams(name, "streams", lambda event: [row(event, "norm", 1.0)]) for name in ("one", "two")
    }
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"one": both["one"]})
    assert {found.measure for found in probe_model(model, tokens)} == {"norm"}
    monkeypatch.setattr("zoo.probes.measure._MEASURES", both)
    with pytest.raises(
        UserError, match="the measures one and two both write rows 'norm'; rename one of them"
    ):
        probe_model(model, tokens)


def test_a_measure_of_events_that_there_are_not_and_one_that_fails_are_named(monkeypatch):
    model, tokens = of_attention(), torch.zeros(1, 4, dtype=torch.int64)
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"mine": of_streams("mine", "stream", list)})
    with pytest.raises(
        UserError, match="unknown event kind of the measure mine 'stream'; did you mean 'streams'"
    ):
        probe_model(model, tokens)
    failing = of_streams("mine", "streams", lambda event: [event.values["stream"]])
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"mine": failing})
    with pytest.raises(RuntimeError, match="the measure mine failed, KeyError: 'stream'"):
        probe_model(model, tokens)


def test_two_files_may_not_claim_one_measure(monkeypatch):
    """A file that is copied and changed has a class of the same name; one that is imported again is no other."""
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {})

    def made(module: str) -> type[Measure]:
        body = {"name": "mine", "kinds": (), "__module__": module, "update": lambda *_: None}
        return type("Mine", (Measure,), body)

    register_measure(made("one"))
    register_measure(made("one"))
    with pytest.raises(ValueError, match="mine"):
        register_measure(made("two"))

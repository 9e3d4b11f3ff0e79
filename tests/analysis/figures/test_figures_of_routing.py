"""Routing: choices, loads and maps against counts and sums made by hand, read back from the axes."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from support import residual_tables
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS
from support.seen_figures import dashes

from analysis import load_results
from analysis.figures import (
    load_balance,
    mutual_information,
    routed_sentence,
    routing_choices,
    routing_map,
    timeline_tokens,
)
from analysis.plotting.style import PALETTE

COUNTS = {
    (0, 0): np.array([[30, 5, 1, 0], [2, 20, 6, 9]]),
    (0, 1): np.array([[16, 12, 4, 4], [16, 13, 3, 5]]),
}
"""By (layer, head): how often four tokens got each of two choices."""


def write_routed(
    experiment, write_run, name="hypergraph interlaced_sf", block="hypergraph", seed=0, counts=None
):
    run = write_run(
        experiment, name, seed, model={"preset": block, "color": "#E69F00"}, blocks=residual_tables.ROUTERS
    )
    rows = [
        row
        for (layer, head), table in (counts or COUNTS).items()
        for row in residual_tables.assigned(table, layer=layer, head=head, block=block)
    ]
    write_table(run, "assignments", rows)
    return run


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def information(table):
    """I(C; T) in nats by a double loop over [choices, tokens]."""
    whole, total = 0.0, float(table.sum())
    for choice in range(table.shape[0]):
        for token in range(table.shape[1]):
            p = table[choice, token] / total
            if p:
                whole += p * math.log(p / (table[choice].sum() / total * table[:, token].sum() / total))
    return whole


def by_frequency(table):
    """Columns of tokens whose counts have the same number of binary digits, added up."""
    classes = {}
    for token in range(table.shape[1]):
        digits = len(bin(int(table[:, token].sum()))) - 2
        classes[digits] = classes.get(digits, 0) + table[:, token]
    return np.stack(list(classes.values()), 1)


def test_mutual_information_is_the_double_sum_over_choices_and_tokens(tmp_path, write_run):
    other = {place: table[:, ::-1].copy() + 1 for place, table in COUNTS.items()}
    write_routed(tmp_path / "exp", write_run, seed=0)
    write_routed(tmp_path / "exp", write_run, seed=1, counts=other)
    table = mutual_information.table(load_results(tmp_path / "exp"))
    figure = mutual_information.draw(table)
    (axes,), (legend,) = figure.axes, figure.legends
    entries = zip(legend.get_texts(), legend.get_lines(), strict=True)
    lines = {text.get_text(): dashes(entry) for text, entry in entries}
    assert lines == {
        "of choice and token": dashes(line(axes, "token")),
        "of choice and token frequency": dashes(line(axes, "frequency")),
        "choices shuffled": dashes(line(axes, "shuffled")),
    }
    assert len(set(lines.values())) == 3
    tables = [*COUNTS.values(), *other.values()]
    expected = np.mean([information(table) for table in tables])
    frequency = np.mean([information(by_frequency(table)) for table in tables])
    assert line(axes, "token").get_ydata() == pytest.approx([expected])
    assert line(axes, "frequency").get_ydata() == pytest.approx([frequency])
    assert 0 < frequency < expected
    heads = line(axes, "_heads").get_ydata()
    assert sorted(heads) == pytest.approx(sorted(information(table) for table in tables))
    said = mutual_information.caption(table)
    assert "dots: single heads of each seed." in said
    assert f"{expected:.3f} of at most" in said
    assert "Seeds 0, 1. Trained on pydocs." in said


def test_what_routers_of_the_first_layer_say_is_called_by_construction():
    def said(layer: int, *information: float) -> str:
        about = {"label": "m", "series": "m", "split": "test", "seed": 0, "run": "r", "layer": layer}
        rows = [
            {**about, "head": head, "measure": name, "value": x}
            for head, token in enumerate(information)
            for name, x in {"token": token, "entropy": 1.5, "frequency": 0.1, "shuffled": 0.1}.items()
        ]
        table = pd.DataFrame(rows).assign(color="#000000", training_set="pydocs", block="hypergraph")
        return mutual_information.caption(table)

    assert "In layer 0 the routers of m read the token and nothing else" in said(0, 1.5, 1.5)
    assert "by construction" not in said(0, 1.5, 1.4)
    assert "by construction" not in said(2, 1.5, 1.5)


def test_controls_of_independent_choices_and_of_choices_by_frequency():
    rng = np.random.default_rng(1)
    tokens = np.repeat(np.arange(40), 50 * 2 ** (np.arange(40) % 3))
    cases = {
        "independent": rng.integers(0, 4, len(tokens)),
        "frequency": tokens % 3,
        "identity": tokens % 4,
    }
    found = {}
    for name, choices in cases.items():
        table = np.zeros((4, 40), int)
        np.add.at(table, (choices, tokens), 1)
        pairs = np.argwhere(table)
        frame = [pairs[:, 0], pairs[:, 1], table[tuple(pairs.T)]]

        found[name] = mutual_information.information(*map(pd.Series, frame))
        assert found[name]["token"] == pytest.approx(information(table))
        bias = (len(np.unique(choices)) - 1) * 39 / (2 * len(tokens))
        assert 0.65 < found[name]["shuffled"] / bias < 1.35
    assert 0.5 < found["independent"]["token"] / found["independent"]["shuffled"] < 1.5
    assert found["independent"]["frequency"] < 0.005
    assert found["frequency"]["frequency"] == pytest.approx(found["frequency"]["token"])
    assert found["frequency"]["token"] == pytest.approx(found["frequency"]["entropy"])
    assert found["identity"]["token"] == pytest.approx(found["identity"]["entropy"])
    assert found["identity"]["frequency"] < 0.1 * found["identity"]["token"]


@pytest.mark.slow
def test_typical_tokens_of_the_head_that_tells_most(tmp_path, write_run):
    write_routed(tmp_path / "exp", write_run)
    write_routed(
        tmp_path / "exp", write_run, name="mom", block="mom", counts={(3, 0): np.eye(4, dtype=int) * 50}
    )
    table = timeline_tokens.table(load_results(tmp_path / "exp"))
    assert (table["head"] == 0).all()
    counts, words = COUNTS[0, 0], [" " + word for word in residual_tables.WORDS[:4]]
    expected = []
    for choice in (0, 1):
        lifts = [
            (counts[choice, t] / counts[choice].sum() / (counts[:, t].sum() / counts.sum()), words[t])
            for t in range(4)
            if counts[choice, t] >= 5
        ]
        expected.append([pair for pair in sorted(lifts, reverse=True) if pair[0] > 1])
    for axes, pairs in zip(timeline_tokens.draw(table).axes, expected, strict=True):
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [lift for lift, _ in pairs])
        assert [tick.get_text() for tick in axes.get_yticklabels()] == [
            word.replace(" ", "␣") for _, word in pairs
        ]
    first = timeline_tokens.draw(table).axes[0]
    assert first.get_title("left") == "timeline 0: 49 % of tokens"
    assert first.texts[0].get_text() == "30 of 32"
    assert (
        f"layer 0, head 0: the head whose timeline says most about the token ({information(counts):.3f}"
        in (timeline_tokens.caption(table))
    )


@pytest.mark.slow
def test_the_map_shows_first_choices_more_opaque_if_more_probable(tmp_path, write_run):
    run = write_run(tmp_path / "exp", "hypergraph interlaced_sf", blocks=ROUTERS)
    first = {
        (layer, head, place): (layer + head + place) % 3
        for layer in (0, 2)
        for head in (0, 1)
        for place in (0, 1, 2)
    }
    rows = []
    for (layer, head, place), choice in first.items():
        at = {"part": "mixer", "block": "hypergraph", "layer": layer, "head": head, "position": place}
        rows.append({**at, "rank": 0, "choice": choice, "probability": 0.5 + 0.1 * place})
        rows.append({**at, "rank": 1, "choice": 3, "probability": 0.1})
    write_table(run, "routes", rows)
    words = ["The", " cat", "\n"]
    write_table(run, "sentence", [{"position": p, "token": p, "text": text} for p, text in enumerate(words)])
    table = routing_map.table(load_results(tmp_path / "exp"))
    drawn = routing_map.draw(table).axes
    assert [axes.get_title("left") for axes in drawn] == ["layer 0", "layer 2"]
    for axes, layer in zip(drawn, (0, 2), strict=True):
        image = axes.get_images()[0].get_array()
        assert image.shape == (2 * 3, 3, 4)
        for head in (0, 1):
            for place in (0, 1, 2):
                color = to_rgb(PALETTE[first[layer, head, place]])
                alphas = [routing_map.opacity(p, 4) for p in (0.5 + 0.1 * place, 0.1)]
                shown = [(*color, alphas[0])] * 2 + [(*to_rgb(PALETTE[3]), alphas[1])]
                np.testing.assert_allclose(image[3 * head : 3 * head + 3, place], shown)
    assert [tick.get_text() for tick in drawn[-1].get_xticklabels()] == ["The", "␣cat", "⏎"]
    said = routing_map.caption(table)
    assert "mean 0.60; 35% opaque at 0.25, an even router's), in the strip below it the second (0.10)" in said
    assert "for each token of one held-out sentence" in said
    assert said.startswith("hypergraph interlaced_sf, router of hypergraph, layers 0 and 2: the timeline")


PROBABILITIES = {
    0: [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.05, 0.85]],
    1: [[0.5, 0.3, 0.2]] * 3,
}
"""By head: of each token's three timelines. Head 1 tells no token from another."""
GIVEN = "The cat sat"


def write_choices(tmp_path, write_run, taken: int = 1):
    """A run whose router took the first `taken` choices of PROBABILITIES, for a sentence that was given."""
    run = write_run(tmp_path / "exp", "hypergraph", blocks=ROUTERS)
    at = {"part": "mixer", "block": "hypergraph", "layer": 1}
    rows = [
        {**at, "head": head, "position": place, "rank": rank, "choice": choice, "probability": p[choice]}
        for head, tokens in PROBABILITIES.items()
        for place, p in enumerate(tokens)
        for rank, choice in enumerate(sorted(range(3), key=lambda choice, p=p: -p[choice]))
    ]
    write_table(run, "routes", [row for row in rows if row["rank"] < taken])
    write_table(run, "alternatives", [row for row in rows if row["rank"] >= taken])
    words = [
        {"position": p, "token": p, "text": x, "given": GIVEN} for p, x in enumerate(("The", " cat", " sat"))
    ]
    write_table(run, "sentence", words)
    return load_results(tmp_path / "exp")


@pytest.mark.slow
def test_bars_show_every_choice_of_the_head_that_tells_tokens_apart(tmp_path, write_run):
    table = routing_choices.table(write_choices(tmp_path, write_run))
    assert set(table["head"]) == {0}
    (axes,) = routing_choices.draw(table).axes
    assert axes.get_title("left") == "layer 1, head 0"
    bars = {(round(bar.get_y() + 0.43), round(bar.get_x())): bar for bar in axes.patches}
    assert len(bars) == 9
    for place, p in enumerate(PROBABILITIES[0]):
        left = 0.0
        for rank, choice in enumerate(sorted(range(3), key=lambda choice, p=p: -p[choice])):
            bar = bars[place, round(100 * left)]
            assert bar.get_width() == 100 * p[choice]
            assert bar.get_facecolor() == (*to_rgb(PALETTE[choice]), 1 if rank < 2 else routing_choices.PALE)
            left += p[choice]
    written = [text.get_text() for text in axes.texts]
    assert written == ["0: 70", "1: 20", "2", "0: 60", "1: 30", "2", "2: 85", "0", "1"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["The", "␣cat", "␣sat"]
    said = routing_choices.caption(table)
    assert "the sentence “The cat sat”, from the first choice on (mean 0.72, the second 0.20" in said
    assert "The block uses the first choice." in said


@pytest.mark.slow
def test_each_timeline_has_its_tokens_in_their_order(tmp_path, write_run):
    table = routed_sentence.table(write_choices(tmp_path, write_run))
    (axes,) = routed_sentence.draw(table).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["timeline 0", "timeline 1", "timeline 2"]
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
        ("The", (0, 0)),
        ("␣cat", (4, 0)),
        ("␣sat", (0, 2)),
    ]
    shades = [(*to_rgb(PALETTE[choice]), 0.15 + 0.6 * p) for choice, p in ((0, 0.7), (0, 0.6), (2, 0.85))]
    np.testing.assert_allclose([patch.get_facecolor() for patch in axes.patches], shades)
    said = routed_sentence.caption(table)
    assert "tokens of the sentence “The cat sat” by the timeline that reads them." in said
    assert "outlined" not in said


@pytest.mark.slow
def test_loads_in_their_own_order_and_imbalance_by_layer(tmp_path, write_run):
    run = write_run(tmp_path / "exp", "moe")
    loads = {(0, 0): [0.1, 0.6, 0.2, 0.1], (0, 1): [0.25, 0.25, 0.25, 0.25], (1, 0): [0.0, 0.0, 0.3, 0.7]}
    rows = []
    for (layer, head), shares in loads.items():
        at = {"layer": layer, "head": head, "part": "channel", "block": "moe"}
        rows.append(measure("imbalance", max(shares) / (sum(shares) / 4), **at))
        rows += [measure("load", s, axis="expert", start=e, end=e + 1, **at) for e, s in enumerate(shares)]
    write_table(run, "measures", rows)
    table = load_balance.table(load_results(tmp_path / "exp"))
    imbalance, load = load_balance.draw(table).axes
    np.testing.assert_allclose(line(imbalance, "moe").get_ydata(), [(2.4 + 1) / 2, 2.8])
    ordered = [sorted(shares, reverse=True) for shares in loads.values()]
    expected = [4 * sum(shares[place] for shares in ordered) / 3 for place in range(4)]
    np.testing.assert_allclose(line(load, "moe").get_ydata(), expected)
    said = load_balance.caption(table)
    assert "moe: 4 experts, imbalance 2.07 (highest 2.80)" in said
    assert "on held-out text: 1 choices a head" in said
    write_table(run, "measures", [{**row, "split": "test", "count": 283_287} for row in rows])
    said = load_balance.caption(load_balance.table(load_results(tmp_path / "exp")))
    assert "First and further choices count alike, on the test split: 283,287 choices a head." in said

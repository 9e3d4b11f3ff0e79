"""Routing maps and load balance against choices and loads given by hand: what is drawn is read back from the axes."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS

from analysis import load_results
from analysis.figures import load_balance, routed_sentence, routing_choices, routing_map
from analysis.plotting.style import PALETTE


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


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

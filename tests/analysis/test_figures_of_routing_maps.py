"""Routing maps and load balance against choices and loads given by hand: what is drawn is read back from the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS

from analysis import load_results
from analysis.figures import load_balance, routing_map
from analysis.plotting.choice_colors import choice_colors
from analysis.plotting.style import PALETTE


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def test_the_map_shows_first_choices_as_opaque_as_they_are_probable(tmp_path, write_run):
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
        assert image.shape == (2, 3, 4)
        for head in (0, 1):
            for place in (0, 1, 2):
                color = to_rgb(PALETTE[first[layer, head, place]])
                np.testing.assert_allclose(image[head, place], (*color, 0.5 + 0.1 * place))
    assert [tick.get_text() for tick in drawn[-1].get_xticklabels()] == ["The", "␣cat", "⏎"]
    said = routing_map.caption(table)
    assert "mean 0.60" in said
    assert said.startswith("hypergraph interlaced_sf, router of hypergraph, layers 0 and 2: the timeline")


def test_the_map_says_which_of_the_models_and_layers_it_shows(tmp_path, write_run):
    for name in ("a", "b"):
        run = write_run(tmp_path / "exp", name, option=name, blocks=ROUTERS)
        at = {"part": "mixer", "block": "mom", "head": 0, "position": 0, "rank": 0, "probability": 0.5}
        write_table(run, "routes", [{**at, "layer": layer, "choice": layer % 2} for layer in range(6)])
        write_table(run, "sentence", [{"position": 0, "token": 0, "text": "The"}])
    said = routing_map.caption(routing_map.table(load_results(tmp_path / "exp")))
    shown = "layers 0, 2, 3 and 5 (routed: 0, 1, 2, 3, 4 and 5)"
    assert said.startswith(f"a, router of mom (one of the routers of a and b), {shown}: the memory")


def test_more_choices_than_colours_share_the_last_one():

    choices = pd.Series([9] * 3 + [0] * 2 + list(range(1, 9)) * 1)
    colors = choice_colors(choices)
    assert len(set(colors.values())) == len(PALETTE)
    assert sum(color == PALETTE[-1] for color in colors.values()) == 3
    assert PALETTE[-1] not in (colors[9], colors[0])


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
    assert "moe: 4 experts, imbalance 2.07 (highest 2.80)" in load_balance.caption(table)


def test_routers_of_other_sizes_are_measured_by_their_own(tmp_path, write_run):
    """Balanced is one for every router: between two memories, four experts, or both in one model."""
    routers = {("mom", "mixer"): [0.5, 0.5], ("moe", "channel"): [0.25] * 4}
    for name, blocks in (("both", ("mom", "moe")), ("memories", ("mom",))):
        run = write_run(tmp_path / "exp", name, option=name, blocks=ROUTERS)
        rows = [
            measure("load", share, layer=0, head=0, block=block, part=part, axis="expert", start=e, end=e + 1)
            for (block, part), shares in routers.items()
            if block in blocks
            for e, share in enumerate(shares)
        ]
        rows += [
            measure("imbalance", 1.0, layer=0, head=0, block=b, part=p) for b, p in routers if b in blocks
        ]
        write_table(run, "measures", rows)
    table = load_balance.table(load_results(tmp_path / "exp"))
    loads = table[table["measure"] == "load"]
    assert len(loads) == 8
    assert set(loads["value"]) == {1.0}
    assert loads.groupby("series")["place"].max().to_dict() == {"both, moe": 4, "both, mom": 2, "memories": 2}
    said = load_balance.caption(table)
    for part in ("both, moe: 4 experts", "both, mom: 2 memories", "memories: 2 memories"):
        assert part in said


def test_heads_of_two_seeds_have_a_dot_each(tmp_path, write_run):
    values = {0: [1.0, 3.0], 1: [3.5, 1.5]}
    for seed, heads in values.items():
        run = write_run(tmp_path / "exp", "moe", seed)
        at = {"part": "channel", "block": "moe", "layer": 0}
        write_table(
            run, "measures", [measure("imbalance", value, head=h, **at) for h, value in enumerate(heads)]
        )
    table = load_balance.table(load_results(tmp_path / "exp"))
    imbalance = load_balance.draw(table).axes[0]
    assert sorted(line(imbalance, "_heads").get_ydata()) == [1.0, 1.5, 3.0, 3.5]
    np.testing.assert_allclose(line(imbalance, "moe").get_ydata(), [2.25])
    assert "dots, single heads of each seed." in load_balance.caption(table)

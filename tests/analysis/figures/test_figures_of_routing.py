"""What choices say about tokens, against counts and sums made by hand: what is drawn is read back from the axes."""

import math

import numpy as np
import pandas as pd
import pytest
from support import residual_tables
from support.probe_tables import write_table
from support.seen_figures import dashes

from analysis import load_results
from analysis.figures import mutual_information, timeline_tokens

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
        rows = [
            {
                "label": "m",
                "series": "m",
                "split": "test",
                "seed": 0,
                "run": "r",
                "layer": layer,
                "head": head,
                "measure": name,
                "value": x,
            }
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

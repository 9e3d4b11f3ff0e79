"""Maps of one sentence show what the probes wrote, read back from the images."""

import numpy as np
import pytest
from support.probe_tables import HEADS, sentence

from analysis.figures import selected_maps, sink_maps


@pytest.mark.slow
def test_sink_maps_show_the_head_with_the_largest_sink_on_a_log_scale(probed):
    table = sink_maps.table(probed)
    figure = sink_maps.draw(table)
    maps = probed.table("maps")
    mine = maps[(maps["kind"] == "attention") & (maps["label"] == "transformer") & (maps["seed"] == 0)]
    length = len(sentence())
    for axes, layer in zip(figure.axes[3:6], (0, 2, 3), strict=True):
        dense = np.zeros((HEADS, length, length))
        for row in mine[mine["layer"] == layer].itertuples():
            dense[row.head, row.query, row.key] = row.weight
        head = int(dense[:, 1:, 0].sum(1).argmax())
        assert axes.get_title(loc="left") == f"layer {layer}, head {head}"
        (image,) = axes.get_images()
        shown = image.get_array()
        visible = np.tril(np.ones((length, length), bool))
        np.testing.assert_allclose(shown[visible], np.maximum(dense[head], 1e-3)[visible])
        assert np.isnan(np.ma.filled(shown, np.nan)[~visible]).all()
        assert (image.norm.vmin, image.norm.vmax, type(image.norm).__name__) == (1e-3, 1.0, "LogNorm")
    assert [text.get_text() for text in figure.axes[3].get_xticklabels()][:4] == ["The", "brown", "=", "over"]
    assert figure.axes[3].get_ylabel() == "transformer\nquery (token)"
    assert figure.axes[-1].get_xlabel().startswith("weight")
    said = sink_maps.caption(table)
    assert "Seed 0. Trained on pydocs." in said
    assert f"The first {length} tokens of one held-out sentence, all models" in said
    said = sink_maps.caption(table.assign(given="The quick\nbrown fox"))
    assert f"The first {length} tokens of the sentence “The quick brown fox”, all models" in said


def test_mean_maps_average_heads_and_count_what_is_left_out_as_nothing(probed):
    table = sink_maps.table(probed, heads="mean")
    maps = probed.table("maps")
    at = (
        (maps["kind"] == "attention")
        & (maps["label"] == "orthgsa")
        & (maps["seed"] == 0)
        & (maps["layer"] == 3)
    )
    shown = sink_maps.draw(table, heads="mean").axes[2].get_images()[0].get_array()
    for query, key in ((20, 3), (20, 20), (5, 0)):
        cell = maps[at & (maps["query"] == query) & (maps["key"] == key)]
        assert shown[query, key] == pytest.approx(max(1e-3, cell["weight"].sum() / HEADS))
    with pytest.raises(ValueError, match="sink or mean"):
        sink_maps.table(probed, heads="all")


def test_selected_maps_show_the_share_of_heads(probed):
    table = selected_maps.table(probed)
    assert set(table["label"]) == {"orthgsa"}
    shown = selected_maps.draw(table).axes[2].get_images()[0].get_array()
    keep = 6 + 3
    for query in range(len(sentence())):
        for key in range(query + 1):
            heads = sum(query - key < keep or key == head for head in range(HEADS))
            assert shown[query, key] == pytest.approx(heads / HEADS), (query, key)
    pairs = sum(
        min(query + 1, 6 + layer) + (query >= 6 + layer) * min(1, (query - 6 - layer + 1) / HEADS)
        for layer in (0, 2, 3)
        for query in range(len(sentence()))
    )
    assert f"orthgsa {pairs / 3 / len(sentence()):.1f}." in selected_maps.caption(table)

"""Models that are not the same size are marked where they are compared."""

import pytest

from analysis import load_results
from analysis.caveats import caveats
from analysis.comparing.equal_terms import deviations, explanation
from analysis.comparing.tables import compare
from analysis.gallery import draw, listed
from analysis.report import latex
from analysis.report.columns import COMPARISON, rows

PARAMETERS, FLOPS = 200_000, 1.4e6


def sized(write_run, folder, name, parameters=1.0, flops=1.0, state=1.0, depth=4, seed=0, **model):
    """A run with so many times the plain transformer's sizes."""
    states = {str(n): int(state * 2048 * n) for n in (1024, 8192, 131072)}
    write_run(
        folder,
        name,
        seed,
        model={"depth": depth, "pattern": "F" * depth, **model},
        parameters_non_embedding=round(parameters * PARAMETERS),
        flops_per_token={"forward": flops * FLOPS},
        state_bytes=states,
    )


def of(folder):
    return load_results(folder).runs


def test_one_per_cent_is_the_limit_on_each_of_three_sizes(tmp_path, write_run):
    sized(write_run, tmp_path / "exp", "transformer")
    sized(write_run, tmp_path / "exp", "within", 1.0099, 0.9901, 1.0099, residual="ohc")
    sized(write_run, tmp_path / "exp", "more", 1.0101, residual="hc")
    sized(write_run, tmp_path / "exp", "slower", flops=1.5, residual="mhc")
    sized(write_run, tmp_path / "exp", "smaller", state=0.25, residual="shc")
    sized(write_run, tmp_path / "exp", "all", 0.9, 0.9, 0.9, residual="hc2")
    found = deviations(of(tmp_path / "exp"))
    assert found["marks"].to_dict() == {
        "transformer": "", "within": "", "more": "†", "slower": "‡", "smaller": "§", "all": "†‡§",
    }  # fmt: skip
    assert set(found["matched_with"]) == {"transformer"}
    assert found.loc["slower", "flops_off"] == pytest.approx(0.5)
    assert found.loc["smaller", "state_off"] == pytest.approx(-0.75)


def test_the_farthest_of_the_three_states_counts(tmp_path, write_run):
    sized(write_run, tmp_path / "exp", "transformer")
    for name, long in (("constant", 2048 * 1024), ("longer", 9 * 2048 * 131072)):
        states = {"1024": 2048 * 1024, "8192": 2048 * 8192, "131072": long}
        write_run(
            tmp_path / "exp", name, model={"pattern": "FFFF", "residual": name},
            parameters_non_embedding=PARAMETERS, flops_per_token={"forward": FLOPS}, state_bytes=states,
        )  # fmt: skip
    found = deviations(of(tmp_path / "exp"))
    assert found.loc["constant", "state_off"] == pytest.approx(1024 / 131072 - 1)
    assert found.loc["longer", "state_off"] == pytest.approx(8)


def test_models_are_held_against_those_of_their_experiment_and_depth(tmp_path, write_run):
    for depth in (4, 24):
        sized(write_run, tmp_path / "a", "transformer", depth, depth, depth, depth=depth)
        sized(write_run, tmp_path / "a", "transformer hc", 1.245 * depth, depth, depth, depth, residual="hc")
    sized(write_run, tmp_path / "b", "alone", 7.0, residual="hc")
    runs = of(tmp_path)
    found = deviations(runs)
    assert found["marks"].to_dict() == {
        "alone": "",
        "transformer (depth=4)": "",
        "transformer (depth=24)": "",
        "transformer hc (depth=4)": "†",
        "transformer hc (depth=24)": "†",
    }
    assert found["matched_with"].isna().to_dict()["alone"]
    assert found.loc["transformer hc (depth=24)", "matched_with"] == "transformer (depth=24)"
    assert explanation(found, runs) == (
        "Not matched, more than 1% from transformer of the same depth: "
        "† parameters beside the embedding (transformer hc +24.5%)."
    )


def test_without_the_plain_transformer_the_size_that_most_share_is_the_reference(tmp_path, write_run):
    for name, size in (("small", 0.5), ("one", 1.0), ("two", 1.005), ("big", 2.0)):
        sized(write_run, tmp_path / "exp", name, size, residual=name)
    found = deviations(of(tmp_path / "exp"))
    assert set(found["matched_with"]) == {"one"}
    assert found["marks"].to_dict() == {"small": "†", "one": "", "two": "", "big": "†"}


@pytest.mark.parametrize(
    "other", [{"pattern": "FFFS"}, {"pattern": "SFFF"}, {"residual": "hc"}, {"channel": "moe"}], ids=str
)
def test_only_full_attention_plain_residuals_and_swiglu_in_every_layer_are_plain(tmp_path, write_run, other):
    """Though the other model is smaller, and the transformer has another name."""
    sized(write_run, tmp_path / "exp", "dense")
    sized(write_run, tmp_path / "exp", "other", 0.9, **other)
    found = deviations(of(tmp_path / "exp"))
    assert found["matched_with"].to_dict() == {"dense": "dense", "other": "dense"}
    assert found["marks"].to_dict() == {"dense": "", "other": "†"}


@pytest.mark.slow
def test_table_figure_caption_and_notices_show_the_marks(tmp_path, write_run):
    for seed in (0, 1):
        sized(write_run, tmp_path / "exp", "transformer", seed=seed)
        sized(write_run, tmp_path / "exp", "hc", 1.245, 1.1, residual="hc", seed=seed)
    results = load_results(tmp_path / "exp")
    table = compare(results.runs)
    assert table.set_index("label").loc["hc", ["matched_with", "marks"]].tolist() == ["transformer", "†‡"]
    shown = {field.heading: [field.show(row) for row in rows(table)] for field in COMPARISON}
    assert shown["name"] == ["hc †‡", "transformer"]
    assert shown["matched"] == ["params +24.5%, FLOPs +10.0%", "reference"]
    assert r"hc \ensuremath{\dagger}\ensuremath{\ddagger}" in latex.table(COMPARISON, rows(table), "")
    figure, caption, drawn = draw("comparison", results)
    ticks = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert ticks == ["hc †‡", "transformer"]
    assert set(drawn["label"]) == {"hc", "transformer"}, "the numbers beside the figure keep their labels"
    said = "† parameters beside the embedding (hc +24.5%); ‡ FLOPs of a token's forward pass (hc +10.0%)"
    assert said in caption
    assert any(said in text for text in caveats(results))


def test_figures_that_compare_models_are_known():
    marked_ones = {entry.name for entry in listed() if entry.compares}
    assert {
        *("comparison", "efficiency", "loss_against_tokens", "composite_gain", "gradient_depth"),
    } <= marked_ones


def test_layouts_are_compared_with_the_dense_model_of_their_group(tmp_path, write_run):
    """Beside the plain transformer, which the picture of layouts in several streams does not show."""
    place, streams = tmp_path / "exp", {"residual": "ohc"}
    sized(write_run, place, "transformer")
    sized(write_run, place, "transformer ohc", 1.03, **streams)
    for layout, pattern in (("one", "SFSF"), ("two", "SSFF")):
        sized(
            write_run,
            place,
            f"hypergraph {layout} ohc",
            1.05,
            preset="hypergraph",
            pattern=pattern,
            **streams,
        )
    figure, caption, _ = draw("layout_ranking", load_results(place))
    names = [text.get_text() for text in figure.axes[0].texts if len(text.get_text()) > 1]
    assert set(names) == {"transformer ohc", "hypergraph one ohc †", "hypergraph two ohc †"}
    assert (
        "more than 1% from transformer ohc: † parameters beside the embedding (hypergraph one ohc +1.9%"
        in caption
    )

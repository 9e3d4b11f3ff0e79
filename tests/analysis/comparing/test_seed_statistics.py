"""Means, intervals and the comparison against hand computation."""

import math

import pandas as pd
import pytest

from analysis import comparison_text, load_results
from analysis.caveats import caveats
from analysis.comparing.tables import compare, interval_text, ranking_metric, with_final_validation
from analysis.report import content
from analysis.report.columns import comparison
from analysis.statistics import estimate, over_seeds


def test_an_interval_by_hand():
    mean, half_width, n = estimate([1.0, 2.0, 4.0])
    deviation = math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2)
    assert (mean, n) == (pytest.approx(7 / 3), 3)
    assert half_width == pytest.approx(4.3026527 * deviation / math.sqrt(3))


def test_one_seed_has_no_interval_and_missing_values_do_not_count():
    alone = estimate([2.5, None, math.nan])
    assert (alone.mean, alone.n) == (2.5, 1)
    assert math.isnan(alone.half_width)
    nothing = estimate([])
    assert nothing.n == 0
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.half_width)


def test_the_comparison_averages_seeds_and_sorts(quickstart):
    table = compare(load_results(quickstart).runs).set_index("label")
    assert list(table.index) == [
        "transformer",
        "hypergraph interlaced_sf",
        "hypergraph late_full",
        "hypergraph bookend",
    ]
    dense = table.loc["transformer"]
    assert dense["test_loss"] == pytest.approx(3.002)
    assert dense["test_loss_ci"] == pytest.approx(12.7062047 * 0.004 / math.sqrt(2) / math.sqrt(2))
    assert dense["test_perplexity"] == pytest.approx((math.exp(3.0) + math.exp(3.004)) / 2)
    assert (dense["n_seeds"], dense["seeds"], dense["parameters"]) == (2, "0, 1", 460_000)


def test_measures_are_averaged_within_a_run_and_then_over_runs_where_all_have_one():
    values = [("x", 0, 1.0), ("x", 0, 3.0), ("x", 1, 5.0), ("x", 2, 9.0), ("y", 0, 4.0), ("y", 2, 7.0)]
    rows = pd.DataFrame(values, columns=["run", "layer", "value"])
    spread = over_seeds(rows, "layer")
    assert spread.to_dict("index") == {
        0: {"mean": 3.0, "min": 2.0, "max": 4.0},
        2: {"mean": 8.0, "min": 7.0, "max": 9.0},
    }
    alone = over_seeds(rows[rows["run"] == "x"], "layer")
    assert alone["mean"].to_dict() == {0: 2.0, 1: 5.0, 2: 9.0}


def test_models_with_different_tokenizers_are_ranked_by_bits_per_byte(tmp_path, write_run):
    write_run(tmp_path / "exp", name="bytes", loss=0.8, metrics=_metrics(loss=0.8, bits_per_byte=1.9))
    words = {"tokenizer": "gpt2", "vocab_size": 50257}
    write_run(tmp_path / "exp", name="gpt2", data=words, metrics=_metrics(loss=3.0, bits_per_byte=1.1))
    runs = load_results(tmp_path).runs
    assert ranking_metric(runs) == "test_bits_per_byte"
    assert list(compare(runs)["label"]) == ["gpt2", "bytes"]


def _metrics(loss: float, bits_per_byte: float) -> dict:
    one = {
        "loss": loss,
        "perplexity": math.exp(loss),
        "word_perplexity": 99.0,
        "bits_per_byte": bits_per_byte,
        "tokens": 10,
        "words": 5,
        "bytes": 20,
        "stride": 4,
    }
    return {"validation": one, "test": one}


def test_digits_follow_the_interval():
    assert interval_text(2.95641, 0.00312) == "2.9564 ± 0.0031"
    assert interval_text(2.95641, 0.31) == "2.96 ± 0.31"
    assert interval_text(2.95641, math.nan) == "2.9564"


def untested(experiment, write_run, layout_changes):
    """Two models without a test evaluation; the alphabet's first has the higher last validation loss."""
    write_run(experiment, name="a", loss=3.5, metrics={}, validation_loss=3.4)
    return write_run(
        experiment, **layout_changes("bookend"), loss=3.0, metrics={}, validation_loss=3.1
    ).parent


@pytest.mark.slow
def test_untested_models_are_compared_by_the_validation_loss_at_the_end(tmp_path, write_run, layout_changes):
    results = load_results(untested(tmp_path / "exp", write_run, layout_changes))
    runs = with_final_validation(results)
    table = compare(runs)
    assert list(table["label"]) == ["hypergraph bookend", "a"]
    last = results.metrics[(results.metrics["split"] == "validation") & (results.metrics["step"] == 300)]
    assert sorted(table["final_validation_loss"]) == pytest.approx(sorted(last["loss"]))
    lines = comparison_text(results).splitlines()
    assert "final validation loss" in lines[0]
    assert "test loss" not in lines[0]
    assert lines[1].split()[1:3] == ["hypergraph", "bookend"]
    headings = [field.heading for field in comparison("final_validation_loss")]
    assert headings[9] == "final validation loss"
    assert not {"test loss", "ppl", "word ppl", "bits per byte"} & set(headings)


def test_the_final_validation_loss_is_the_last_one_and_not_the_lowest(tmp_path, write_run):
    """Also where rows were written out of order, and where the lowest loss would rank the models otherwise."""
    curves = {"turned": [(10, 3.0), (30, 3.6), (20, 2.0)], "steady": [(10, 3.5), (20, 3.4), (30, 3.3)]}
    for name, rows in curves.items():
        run = write_run(tmp_path / "exp", name=name, option=name, metrics={})
        lines = ["step,tokens,split,loss", "40,40,train,1.0"]
        (run / "metrics.csv").write_text(
            "\n".join([*lines, *(f"{step},{step},validation,{loss}" for step, loss in rows)]) + "\n"
        )
    table = compare(with_final_validation(load_results(tmp_path / "exp")))
    assert list(table["label"]) == ["steady", "turned"]
    assert list(table["final_validation_loss"]) == [3.3, 3.6]


@pytest.mark.slow
def test_runs_that_recorded_no_state_of_their_tree_are_not_called_changed(tmp_path, write_run):
    write_run(tmp_path / "exp", seed=0, dirty=None, commit=None)
    write_run(tmp_path / "exp", seed=1)
    assert not [text for text in caveats(load_results(tmp_path / "exp")) if "uncommitted" in text]
    write_run(tmp_path / "exp", seed=2, dirty=True)
    (said,) = [text for text in caveats(load_results(tmp_path / "exp")) if "uncommitted" in text]
    assert "1 of 3 runs" in said


def test_the_spread_of_sizes_is_told_over_the_smallest(tmp_path, write_run):
    write_run(tmp_path / "exp", parameters_non_embedding=200_000)
    write_run(tmp_path / "exp", name="wide", option=1, parameters_non_embedding=300_000)
    runs = load_results(tmp_path).runs
    assert "beside the embedding: 200,000 to 300,000, 50.0% apart" in content.paragraph(runs, runs["label"])

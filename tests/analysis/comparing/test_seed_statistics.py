"""Means and intervals over seeds against hand computation, and what other test documents would change."""

import math

import numpy as np
import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis import comparison_text, load_results
from analysis.caveats import caveats
from analysis.comparing.tables import compare, interval_text, ranking_metric, with_final_validation
from analysis.comparing.verdicts import answers, effective_number, families, text_differences
from analysis.report import content
from analysis.report.columns import comparison
from analysis.statistics import estimate, over_documents, over_seeds


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
    }
    one |= {"tokens": 10, "words": 5, "bytes": 20, "stride": 4}
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


TOKENS = np.arange(100, 140)


@pytest.fixture
def scored(tmp_path, write_run):
    """Two models with two seeds each, scored by 40 documents; the second is worse by 0.1 nats in every token."""
    generator = np.random.default_rng(0)
    hard = generator.normal(3.0, 0.3, len(TOKENS))
    for name, worse in (("transformer", 0.0), ("kda", 0.1)):
        for seed in (0, 1):
            model = {"preset": name, "pattern": name[0].upper().replace("T", "F") * 4}
            run = write_run(tmp_path / "exp", name, seed, 3.0 + worse + 0.01 * seed, model=model)
            losses = hard + worse + generator.normal(0, 0.05, len(TOKENS))
            rows = pd.DataFrame({"split": "test", "document": range(len(TOKENS)), "tokens": TOKENS})
            rows.assign(nats=losses * TOKENS).to_csv(run / "documents.csv", index=False)
    return tmp_path / "exp"


def family(results):
    (found,) = families(with_final_validation(results), "test_loss")
    return found


@pytest.mark.slow
def test_differences_are_paired_over_documents(scored):
    results = load_results(scored)
    documents = results.table("documents")
    assert len(documents) == 4 * len(TOKENS)
    found = text_differences(family(results), documents)["kda"]
    assert found.documents == len(TOKENS)
    assert found.difference == pytest.approx(0.1, abs=0.03)
    assert found.error < 0.02  # the documents differ by 0.3 nats/token, and do so for both models
    assert found.low < found.difference < found.high
    (answer,) = answers([family(results)], documents)
    assert "over the 40 documents of this one" in answer.method[-1]
    assert answer.method[-1].endswith("for: none.")


def test_runs_that_were_not_all_scored_by_document_say_nothing(scored):
    next(scored.glob("*/documents.csv")).unlink()
    results = load_results(scored)
    assert text_differences(family(results), results.table("documents")) == {}


def pair_of(*others: tuple) -> dict:
    """Differences over documents of two runs: of 0.1 nats a token in three; others: more rows of the second."""
    rows = [("test", place, 100, 300.0) for place in range(3)]
    worse = [(split, place, tokens, nats + 10) for split, place, tokens, nats in rows]
    runs = model("transformer", [3.0], run="a"), model("kda", [3.1], run="b")
    results = pretended(*runs, documents={"a": [*rows, ("validation", 0, 50, 150.0)], "b": [*worse, *others]})
    return text_differences(family(results), results.table("documents"))


def test_documents_of_the_test_split_alone_count():
    assert pair_of(("validation", 0, 50, 999.0))["kda"].difference == pytest.approx(0.1)


@pytest.mark.parametrize("other", [("test", 3, 100, 300.0), ("test", 0, 90, 300.0)])
def test_runs_that_were_scored_on_other_documents_say_nothing(other):
    """One document more, and one of another length."""
    assert pair_of(other) == {}


def test_one_long_document_among_short_ones_is_worth_one():
    assert effective_number(np.array([100, 100, 100])) == pytest.approx(3)
    assert effective_number(np.array([10_000, 1, 1])) == pytest.approx(1, rel=1e-3)
    assert effective_number(np.array([])) == 0


def test_the_standard_error_is_that_of_a_ratio():
    """Of three documents, by hand: D = 9/6 nats a token, its residuals −0.5, −1 and 1.5, each by its leverage."""
    found = over_documents(np.array([2.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3]))
    assert found.difference == pytest.approx(9 / 6)
    assert found.error == pytest.approx((0.5**2 * 6 / 5 + 1.0**2 * 6 / 4 + 1.5**2 * 6 / 3) ** 0.5 / 6)
    assert found.difference - found.low == pytest.approx(found.high - found.difference)


def test_documents_of_unequal_length_make_a_long_interval():
    """Two documents have most tokens: drawn without one of them a difference has another error, and is judged by it."""
    lengths = np.array([10, 12, 9, 400, 11, 8, 300, 10])
    gaps = np.random.default_rng(3).standard_normal(8) * np.sqrt(lengths)
    found = over_documents(gaps, 0 * gaps, lengths)
    assert (found.high - found.difference) / found.error > 3.5, (
        "deviations over the one error of all give 2.6"
    )


def test_documents_without_tokens_and_too_few_of_them():
    ones = np.ones(3)
    assert over_documents(ones, 0 * ones, np.array([0, 0, 5])).documents == 1
    assert np.isnan(over_documents(ones, 0 * ones, np.array([0, 0, 5])).error)
    assert np.isnan(over_documents(ones, ones, np.zeros(3)).difference)

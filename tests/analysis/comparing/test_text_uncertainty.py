"""What other test documents would change: the record is read, told, exported, and may be damaged."""

import numpy as np
import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis import load_results
from analysis.comparing.tables import with_final_validation
from analysis.comparing.verdicts import answers, effective_number, families, text_differences
from analysis.statistics import over_documents

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

"""The report's tables, value by value, from the numbers that the runs were written with."""

import math

import pytest

from analysis import load_results
from analysis.comparing.tables import compare
from analysis.figures import (
    comparison,
    efficiency,
    gradient_norms,
    layout_ranking,
    loss_curves,
    state_and_memory,
)
from analysis.report.columns import COMPARISON, RUNS, rows, sort_key

LOSSES = {
    "transformer": (3.0, 3.004),
    "hypergraph interlaced_sf": (3.04, 3.037),
    "hypergraph late_full": (3.07, 3.067),
    "hypergraph bookend": (3.12, 3.117),
}
"""Test losses of seeds 0 and 1; the best model first."""
SEEDS = [(label, seed, loss) for label, pair in LOSSES.items() for seed, loss in enumerate(pair)]
DENSE = {"parameters": 460_000, "flops_training": 4.2e6, "flops_forward": 1.4e6, "tokens_per_second": 7402.4}
SPARSE = {"parameters": 461_536, "flops_training": 3.9e6, "flops_forward": 1.3e6, "tokens_per_second": 5210.0}
BITS = 60_000 / 250_000 / math.log(2)  # tokens over bytes of the test split
T = 12.7062047  # Student's, of two seeds at 95 %


def costs(label: str) -> dict[str, float]:
    return DENSE if label == "transformer" else SPARSE


def numbers(table, *columns: str) -> dict[tuple, tuple]:
    """The columns of a figure's table by label (or model) and seed, which are one row each."""
    label = "label" if "label" in table else "model"
    assert not table.duplicated([label, "seed"]).any()
    found = table[[label, "seed", *columns]].itertuples(index=False, name=None)
    return {(name, seed): tuple(rest) for name, seed, *rest in found}


@pytest.mark.slow
def test_the_comparison_is_the_means_and_intervals_of_the_runs(quickstart):
    table = compare(load_results(quickstart).runs)
    assert list(table["label"]) == list(LOSSES)
    for row, (label, pair) in zip(table.to_dict("records"), LOSSES.items(), strict=True):
        means = {
            "test_loss": pair,
            "test_perplexity": tuple(math.exp(loss) for loss in pair),
            "test_word_perplexity": tuple(math.exp(1.5 * loss) for loss in pair),
            "test_bits_per_byte": tuple(BITS * loss for loss in pair),
            "validation_loss": tuple(loss - 0.02 for loss in pair),
            "tokens_per_second": (costs(label)["tokens_per_second"],) * 2,
            "best_step": (300, 300),
        }
        for name, (first, second) in means.items():
            assert row[name] == pytest.approx((first + second) / 2), (label, name)
            # Of two values s/√2 is half their distance.
            half = T * abs(second - first) / 2
            assert row[f"{name}_ci"] == pytest.approx(half, rel=1e-6, abs=1e-9), (label, name)
        assert [row[name] for name in ("n_seeds", "seeds", "workers")] == [2, "0, 1", 1]
        assert row["peak_memory_bytes"] == 310_000_000
        assert row["parameters_non_embedding"] == 200_000
        assert {name: row[name] for name in DENSE} == pytest.approx(costs(label))
        assert row["matched_with"] == "transformer"
        assert row["marks"] == ("" if label == "transformer" else "‡")
        assert row["flops_off"] == pytest.approx(costs(label)["flops_forward"] / 1.4e6 - 1)
        assert math.isnan(row["mfu"])


@pytest.mark.parametrize("module", [comparison, layout_ranking, efficiency])
def test_figures_of_final_quality_hold_the_test_loss_of_every_run(quickstart, module):
    table = module.table(load_results(quickstart))
    assert numbers(table, "value") == {(label, seed): pytest.approx((loss,)) for label, seed, loss in SEEDS}
    assert set(table["metric"]) == {"test_loss"}
    if module is not efficiency:
        assert list(table["label"].unique()) == list(LOSSES)


def test_costs_are_those_of_the_runs(quickstart):
    results = load_results(quickstart)
    assert numbers(efficiency.table(results), "parameters", "flops_training") == {
        (label, seed): (costs(label)["parameters"], costs(label)["flops_training"])
        for label, seed, _ in SEEDS
    }
    states = ("state_bytes_1024", "state_bytes_8192", "state_bytes_131072", "peak_memory_bytes")
    assert numbers(state_and_memory.table(results), *states) == {
        (label, seed): (2048 * 1024, 2048 * 8192, 2048 * 131072, 310_000_000) for label, seed, _ in SEEDS
    }


@pytest.mark.parametrize("against", ["tokens", "flops", "seconds"])
def test_curves_hold_every_loss_at_its_tokens_flops_and_seconds(quickstart, against):
    table = loss_curves.table(load_results(quickstart), against=against)
    columns = ["label", "seed", "split", "tokens", "flops", "seconds", "loss"]
    found = sorted(table[columns].itertuples(index=False, name=None))
    expected = []
    for label, seed, loss in SEEDS:
        final = loss - 0.02  # what its metrics fall to, from ln 4096 on
        for step in range(25, 301, 25):
            tokens, at = 1024.0 * step, final + (math.log(4096) - final) * math.exp(-5 * step / 300)
            place = (tokens, tokens * costs(label)["flops_training"], 0.14 * step)
            expected.append((label, seed, "train", *place, at + 0.03))
            if step % 50 == 0:
                expected.append((label, seed, "validation", *place, at))
    assert [row[:3] for row in found] == [row[:3] for row in sorted(expected)]
    for row, wanted in zip(found, sorted(expected), strict=True):
        assert row[3:] == pytest.approx(wanted[3:], abs=1e-5)


def test_gradient_norms_are_those_of_the_training_rows(quickstart):
    table = gradient_norms.table(load_results(quickstart))
    rows = table[["label", "seed", "step", "grad_norm", "clip"]].itertuples(index=False, name=None)
    assert sorted(rows) == sorted(
        (label, seed, float(step), 0.8, 1.0) for label, seed, _ in SEEDS for step in range(25, 301, 25)
    )


@pytest.fixture
def frames(tmp_path, write_run):
    """Tables of one model whose numbers nobody can take for each other."""
    for seed, shift in ((0, 0.0), (1, 0.2)):
        write_run(
            tmp_path / "exp",
            seed=seed,
            loss=3.0 + shift,
            validation_loss=2.5 + shift,
            best_step=200,
            mfu=0.345,
            peak_memory_bytes=(300 - 100 * seed) * 2**20,  # a model's is the highest of its seeds'
            seconds=245.0,
            parameters=470_000,
        )
    runs = load_results(tmp_path / "exp").runs
    return compare(runs), runs


def shown(fields, frame) -> dict[str, str]:
    """The first row's cells by heading."""
    return {field.heading: field.show(rows(frame)[0]) for field in fields}


@pytest.mark.slow
def test_one_row_a_model(frames):
    table, _ = frames
    said = shown(COMPARISON, table)
    half_width = 12.7062047 * 0.2 / math.sqrt(2) / math.sqrt(2)
    bits = 60_000 / 250_000 / math.log(2)
    assert said == {
        "name": "transformer",
        "rank": "–",
        "difference": "–",
        "p": "–",
        "pattern": "FFFF",
        "params": "470k",
        "beside embedding": "200k",
        "matched": "–",
        "FLOPs/token": "1.40M",
        "test loss": f"3.1 ± {half_width:.1f}",
        "ppl": f"{(math.exp(3.0) + math.exp(3.2)) / 2:.2f}",
        "word ppl": f"{(math.exp(3.0 * 1.5) + math.exp(3.2 * 1.5)) / 2:.2f}",
        "bits per byte": f"{3.1 * bits:.2f} ± {half_width * bits:.2f}",
        "best step": "200",
        "learning rate": "0.003",
        "tokens/s": "7.40k",
        "MFU": "34.5 %",
        "peak memory": "300 MiB",
        "seeds": "0, 1",
    }


@pytest.mark.slow
def test_columns_are_sorted_by_the_numbers_that_they_show(frames):
    table, runs = frames
    sorts = {
        "params": 470_000, "FLOPs/token": 1.4e6, "test loss": 3.1, "best step": 200, "tokens/s": 7402.4, "MFU": 0.345,
    }  # fmt: skip
    found = {field.heading: sort_key(field, rows(table)[0]) for field in COMPARISON if field.heading in sorts}
    assert {heading: float(key) for heading, key in found.items()} == pytest.approx(sorts)
    sorts = {
        "seed": 0,
        "validation loss": 2.5,
        "test loss": 3.0,
        "test ppl": math.exp(3.0),
        "steps": 300,
        "time": 245,
    }
    found = {field.heading: sort_key(field, rows(runs)[0]) for field in RUNS if field.heading in sorts}
    assert {heading: float(key) for heading, key in found.items()} == pytest.approx(sorts)

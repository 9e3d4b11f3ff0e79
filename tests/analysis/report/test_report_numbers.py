"""The report's tables, value by value, from the numbers that the runs were written with; its tables of probes."""

import json
import math

import pytest
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS

from analysis import load_results
from analysis.caveats import caveats
from analysis.comparing.tables import compare
from analysis.figures import (
    loss_curves,
)
from analysis.loading.results import RECORD, TABLES, interrupted
from analysis.publishing import Publication, publish
from analysis.report.columns import COMPARISON, RUNS, layouts, rows, sort_key
from analysis.report.content import samples

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


@pytest.fixture
def probed(tmp_path, write_run):
    """Two runs, each probed with 8 windows: their experiment and their records."""
    experiment, records = tmp_path / "exp", []
    for seed in (0, 1):
        run = write_run(experiment, seed=seed)
        write_table(run, "measures", [measure("entropy", 1.0)])
        records.append(run / "probes" / RECORD)
        records[-1].write_text(
            json.dumps({"settings": {"windows": 8, "batch_size": 4}, "commit": "f00dfeed"})
        )
    return experiment, records


def of_probes(experiment) -> list[str]:
    return [text for text in caveats(load_results(experiment)) if "prob" in text]


def test_a_sample_of_a_run_in_two_experiments_is_shown_once(tmp_path, write_run):
    said = {"prompt": "The ", "text": "end", "temperature": 0.8, "sample_seed": 0, "tokens_per_second": 90.0}
    for experiment in ("a", "b"):
        run = write_run(tmp_path / experiment)
        write_table(run, "samples", [said, {**said, "sample_seed": 1, "text": "other end"}])
    found = samples(load_results(tmp_path), ["transformer"])
    assert [[one.text for one in prompt.continuations] for prompt in found.prompts] == [
        ["end"],
        ["other end"],
    ]


@pytest.mark.slow
def test_a_pass_without_its_record_was_interrupted(probed):
    experiment, records = probed
    records[1].unlink()
    (said,) = of_probes(experiment)
    assert records[1].parent.parent.name in said
    assert "interrupted" in said
    assert "job=probe" in said


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.slow
def test_tables_of_a_pass_without_a_record_are_of_an_interrupted_one_but_for_those_of_training(
    tmp_path, write_run, name
):
    """A run that looks at itself while it trains (trainer.probe_every) writes a table and no record."""
    run = write_run(tmp_path / "exp")
    write_table(run, name, [{}])
    (run / "probes" / RECORD).unlink()
    results = load_results(tmp_path / "exp")
    assert interrupted(results) == ([] if name == "training" else [f"exp/{run.name}"])
    assert len([text for text in caveats(results) if "interrupted" in text]) == (name != "training")
    if name == "training":
        assert publish(results, tmp_path / "published", Publication("Does it work?")).is_dir()


# By layout (None: the dense baseline): pattern, validation and test loss by seed, imbalance of the heads by seed.
# By test loss the first two stand the other way round.
LAYOUTS = {
    None: ("FFFF", [(2.90, 2.96), (2.92, 2.98)], None),
    "interlaced_sf": ("SFSF", [(2.91, 2.95), (2.93, 2.97)], [(1.0, 1.1, 1.2, 1.3), (1.1, 1.2, 1.3, 1.4)]),
    "bookend": ("FSSF", [(2.99, 3.00), (2.99, 3.00)], [(1.0, 1.0, 1.1, 1.1), (1.0, 1.0, 1.1, 1.1)]),
}


def write_layouts(experiment, write_run, split: str | None = "test"):
    for layout, (pattern, losses, heads) in LAYOUTS.items():
        for seed, (validation, test) in enumerate(losses):
            model = {"preset": "x" if layout else "transformer", "layout": layout, "pattern": pattern}
            name = f"x {layout}" if layout else "transformer"
            run = write_run(
                experiment, name, seed, test, validation_loss=validation, model=model, blocks=ROUTERS
            )
            if heads is None:
                continue
            at = {"part": "mixer", "block": "hypergraph", "count": 283_287, "split": split}
            write_table(
                run,
                "measures",
                [
                    measure("imbalance", value, layer=place // 2, head=place % 2, **at)
                    for place, value in enumerate(heads[seed])
                ]
                + [
                    measure("load", 0.5, layer=0, head=0, axis="expert", start=e, end=e + 1, **at)
                    for e in (0, 1)
                ],
            )
    return load_results(experiment)


@pytest.mark.slow
def test_quality_by_validation_loss_and_balance_by_imbalance(tmp_path, write_run):
    found = layouts(write_layouts(tmp_path / "exp", write_run))
    assert list(found.quality["layout"]) == ["transformer", "interlaced_sf", "bookend"]
    assert found.quality["validation_loss"].tolist() == pytest.approx([2.91, 2.92, 2.99])
    assert list(found.balance["layout"]) == ["bookend", "interlaced_sf"]
    assert found.balance["imbalance"].tolist() == pytest.approx([1.05, 1.2])
    assert found.balance["imbalance_ci"].tolist() == pytest.approx([0, 12.706 * 0.05], rel=1e-3)
    assert list(found.balance["notes"]) == ["best balance", "best test loss"]
    assert found.balance_note == "Counted on the test split."

"""What a report says of the passes that made the probes' tables, and its tables of named layouts."""

import json

import pytest
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS

from analysis import load_results
from analysis.caveats import caveats
from analysis.loading.results import RECORD, TABLES, interrupted
from analysis.publishing import Publication, publish
from analysis.report.columns import layouts
from analysis.report.content import samples


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

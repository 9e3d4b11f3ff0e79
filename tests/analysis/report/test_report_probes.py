"""What a report says of the passes that made the probes' tables."""

import json

import pytest
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.caveats import caveats
from analysis.loading.results import RECORD, TABLES, interrupted
from analysis.publishing import Publication, publish
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

"""Every published study can be traced: to its question, its commands, its code, and to the runs by their names."""

import functools
import re
import shutil
from pathlib import Path

import pytest
from support.program import ROOT, Lab

from analysis import load_results, publishing
from analysis.comparing.verdicts import LEVELS
from analysis.publishing import missing_parts
from experiments.data.config import DataConfig
from experiments.data.task_set import TaskSet
from experiments.planning.identity import as_format_1, identify, recorded_config, run_name
from zoo import registry
from zoo.config import from_dict
from zoo.model import letters_of

STUDIES = sorted(path.parent for path in (ROOT / "results" / "published").glob("*/runs.parquet"))


def test_there_are_studies_and_nothing_else_in_folders():
    folders = sorted(path for path in (ROOT / "results" / "published").iterdir() if path.is_dir())
    assert folders == STUDIES
    assert len(STUDIES) >= 6


@functools.cache
def parts(study: Path):
    return (*publishing.read_configurations(study), load_results(study).runs)


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_published_folder_says_where_it_comes_from(study):
    assert missing_parts(study) == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
@pytest.mark.slow
def test_published_runs_are_found_by_their_configurations(study):
    """The name of a run follows from its configuration and its text, today as on the day of the run."""
    if study.name == "verdict_ema" and "ema" not in registry.blocks("mixer"):
        pytest.skip(
            "its block is README's example: tests/test_documented_blocks.py finds it, in a tree that has it"
        )
    configs, identities, runs = parts(study)
    for row in runs.itertuples():
        config = recorded_config(configs[row.run])
        identity = identify(config, letters_of(config.model), row.data_fingerprint)
        if identities[row.run]["format"] == 1:
            identity = as_format_1(identity, config.evaluate.splits)
        assert identity == identities[row.run], row.run
        assert run_name(identity) == row.run
        assert (config.seed, config.optim.lr, letters_of(config.model)) == (row.seed, row.lr, row.pattern)


@pytest.mark.long
def test_levels_of_published_tasks_follow_from_the_settings_of_their_runs():
    """What chance, copying and a memory get right is measured again, once for each setting of a task and its steps."""
    told, measured = {}, {}
    for study in STUDIES:
        configs, _, runs = parts(study)
        runs = runs.assign(sequences=runs["steps"] * runs["batch_size"] * runs["accumulate"])
        for (content, count), group in runs[runs["chance"].notna()].groupby(
            ["data_fingerprint", "sequences"]
        ):
            made = TaskSet(
                from_dict(DataConfig, configs[group["run"].iloc[0]]["data"], "data", recorded=True)
            )
            assert made.fingerprint == content, study.name
            key = study.name, made.label, count
            told[key] = list(group[list(LEVELS)].drop_duplicates().itertuples(index=False))
            measured[key] = [(made.task.chance, made.shortcut.accuracy, made.memorised(count))]
    assert len(told) >= 20
    assert told == {key: [pytest.approx(levels)] for key, (levels,) in measured.items()}


@pytest.mark.slow
def test_a_folder_without_its_readme_is_seen(tmp_path):
    study = shutil.copytree(next(path for path in STUDIES if path.name == "sinks"), tmp_path / "sinks")
    (study / "README.md").unlink()
    assert "no README.md" in missing_parts(study)


def figures_of(study: Path) -> tuple[set[str], set[str]]:
    """The figures that a study was published with: those whose picture was kept, and those that its README names."""
    page = (study / "README.md").read_text()
    (rest,) = re.findall(
        r"^- not here: (.*); `python run\.py job=report runs=results/published/(\w+)` draws", page, re.M
    ) or [("", study.name)]
    names, place = rest
    assert place == study.name
    return {path.stem for path in study.glob("*.[ps][nv]g")}, set(re.findall(r"`(\w+)`", names))


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_figure_of_a_study_is_there_or_said_to_be_drawn_again(study):
    kept, rest = figures_of(study)
    asked = re.search(r"figures=\[([\w,]*)\]", publishing.read_provenance(study).command)
    assert kept | rest == set(asked[1].split(",") if asked else ())
    assert not kept & rest
    assert len(kept) <= 3
    assert {path.stem for path in study.glob("*.txt")} == kept


@pytest.mark.long
def test_a_report_draws_the_figures_that_were_not_kept(lab: Lab):
    """From the tables of the study alone, by the command of its README."""
    study = next(path for path in STUDIES if path.name == "papers_recall")
    kept, rest = figures_of(study)
    assert len(rest) == 2
    place = shutil.copytree(study, lab.results / "published" / study.name)
    done = lab.here("job=report", f"runs={place}")
    assert (done.status, done.err) == (0, "")
    for suffix in (".png", ".svg", ".csv"):
        assert kept | rest <= {path.stem for path in (place / "report" / "figures").glob(f"*{suffix}")}


@pytest.mark.long
def test_the_job_publishes_a_study_again_and_speaks_in_one_line(lab: Lab):
    study = next(path for path in STUDIES if path.name == "extrapolation")
    words = ["job=publish", f"runs={study}", "source=somewhere"]
    error = lab.refused(*words)
    assert error.startswith("error: job=publish needs the study's question")
    assert error.count("\n") == 1
    done = lab.here(*words, "question=Do all eleven train?")
    assert (done.status, done.err) == (0, "")
    folder = lab.results / "published" / "extrapolation"
    assert missing_parts(folder) == []
    page = (folder / "README.md").read_text()
    assert "'question=Do all eleven train?'" in page
    assert "runs=extrapolation" in page  # the last part of this machine's path
    assert str(ROOT) not in page
    (folder / "README.md").unlink()
    shutil.move(folder, lab.results / "moved")
    folder.symlink_to(lab.folder)
    error = lab.refused(*words, "question=Do all eleven train?")
    assert "nothing is written through links" in error
    assert error.count("\n") == 1

"""The files that README.md and docs/extend.md show are whole: put into the tree, everything else picks them up."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from support.tree_copy import contents, copy_tree, python, shown

from experiments.configuration.schema import Config
from experiments.data import TASKS, TaskSet, tasks_base
from experiments.training.lightning_modules import SyntheticTask
from zoo import LanguageModel, registry

MIXER, EXTENSIONS = shown("README.md"), shown("docs/extend.md")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the repository with all of these files in it."""
    folder = tmp_path_factory.mktemp("archzoo")
    copy_tree(folder)
    for path, source in {**MIXER, **EXTENSIONS}.items():
        assert not (folder / path).exists(), f"an example would overwrite {path}"
        (folder / path).write_text(source, encoding="utf-8")
    return folder


def test_the_readme_shows_one_mixer_that_fits_on_a_page():
    assert list(MIXER) == ["zoo/mixers/ema.py"]
    (source,) = MIXER.values()
    assert len([line for line in source.splitlines() if line.strip()]) <= 70


def test_the_pages_show_a_file_of_every_other_kind():
    assert [path.rsplit("/", 1)[0] for path in EXTENSIONS] == [
        *("zoo/residuals", "zoo/channels", "zoo/probes/measures", "analysis/figures"),
        "experiments/data/tasks",
    ]


@pytest.mark.long
def test_the_examples_pass_the_contract_tests(tree):
    before = contents(tree)
    # The README's own command, for all three; "not gpu" spares a machine without one the skips that it would name.
    command = ["-m", "pytest", "tests/zoo", "-k", "ema or layerscale or relu2", "-m", "not gpu"]
    said = python(tree, *command, "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", said)
    assert passed, said
    assert int(passed.group(1)) >= 40  # some fifteen contracts of each; none may have been skipped or missed
    assert not re.search(r"\d+ (failed|error|skipped)", said), said
    assert contents(tree) == before


@pytest.mark.long
def test_the_published_runs_of_the_mixer_are_found_by_their_configurations(tree):
    file = "tests/experiments/planning/test_published.py"
    command = ["-m", "pytest", file, "-k", "found_by and verdict_ema"]
    assert re.search(
        r"^1 passed, \d+ deselected", python(tree, *command, "-p", "no:cacheprovider"), re.MULTILINE
    )


@pytest.mark.long
def test_a_model_of_the_examples_is_trained_measured_and_drawn(tree, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i}: the quick brown fox jumps over {i * i} dogs." for i in range(800)))
    before = contents(tree)
    words = [
        "model.pattern=EF",
        "model.residual.name=layerscale",
        "model.channel.name=relu2",
        "model.depth=2",
    ]
    words += ["model.d_model=16", "model.n_heads=2", "data=text", f"data.path={text}", "data.tokenizer=bytes"]
    words += ["data.seq_len=32", "data.batch_size=2", "trainer.max_steps=3"]
    python(tree, "run.py", *words, f"results={tmp_path / 'results'}", "name=extended")
    folder = tmp_path / "results" / "extended"
    (summary,) = folder.glob("*/summary.json")
    assert '"name": "ema"' in summary.read_text()
    python(tree, "run.py", "job=probe", f"runs={folder}", "probe.windows=1", "probe.prompts=[]")
    rows = pd.read_parquet(summary.parent / "probes" / "measures.parquet")
    kurtosis = rows[rows["measure"] == "stream_kurtosis"]
    assert sorted(zip(kurtosis["layer"], kurtosis["part"], strict=True)) == [
        *((0, "channel"), (0, "mixer"), (1, "channel"), (1, "mixer"), (2, "head"))
    ]
    assert kurtosis["value"].between(1, 16).all()
    python(tree, "run.py", "job=report", f"runs={folder}")
    drawn = pd.read_csv(folder / "report" / "figures" / "outliers.csv")
    assert sorted(drawn["place"]) == [0, 0.5, 1, 1.5, 2]
    assert "ema" in python(tree, "run.py", "job=list")
    assert contents(tree) == before


@pytest.fixture
def task_files(tmp_path, monkeypatch):
    """Put files into an empty folder of tasks and import them; returns the names of what registered itself."""
    known = dict(TASKS)
    folder = tmp_path / "tasks_of_one_file"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tasks_base, "PACKAGE", folder.name)
    monkeypatch.setattr(registry, "_left_out", {})

    def put(**sources: str) -> set[str]:
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        tasks_base.discover()
        return TASKS.keys() - known.keys()

    yield put
    TASKS.clear()
    TASKS.update(known)
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def test_a_new_file_is_a_task_that_a_model_trains_on(task_files):
    assert task_files(delay=EXTENSIONS["experiments/data/tasks/delay.py"]) == {"delay"}
    options = TASKS["delay"].config(delay=2)
    task_set = TaskSet(SimpleNamespace(name="delay", batch_size=4, tasks=SimpleNamespace(delay=options)))
    config = Config()
    config.model.pattern, config.model.depth, config.model.d_model = "F", 1, 16
    model = LanguageModel(config.model, vocab_size=task_set.vocab_size, seq_len=32)
    task, batches = SyntheticTask(model, config, task_set.batches(0), task_set.card), task_set.batches(0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(2):
        optimizer.zero_grad()
        loss, _, _ = task.losses(batches.batch(0))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


def test_a_task_that_cannot_be_imported_is_named_and_left_out(task_files):
    good = EXTENSIONS["experiments/data/tasks/delay.py"]
    bad = good.replace('"delay", config', '"mqar", config')
    assert task_files(delay=good, broken="import nothing_there", again=bad) == {"delay"}
    said = registry.left_out("tasks_of_one_file")
    assert any("ModuleNotFoundError: No module named 'nothing_there'" in line for line in said)
    assert any("task 'mqar' is taken by experiments.data.tasks.mqar; choose another" in line for line in said)


@pytest.mark.long
def test_a_task_of_one_file_is_trained_on_and_listed(tree, tmp_path):
    before = contents(tree)
    tiny = ["model.pattern=F", "model.depth=1", "model.d_model=16", "model.n_heads=2", "data.batch_size=4"]
    options = ["data=delay", "data.tasks.delay.delay=2", "trainer.max_steps=2", f"results={tmp_path}"]
    said = python(tree, "run.py", *tiny, *options)
    assert "answers right (chance 12.50%)" in said
    (summary,) = tmp_path.glob("default/*/summary.json")
    assert json.loads(summary.read_text())["data"]["task"] == {"length": 32, "delay": 2, "values": 8}
    assert "Delayed copy" in python(tree, "run.py", "job=list")
    assert contents(tree) == before

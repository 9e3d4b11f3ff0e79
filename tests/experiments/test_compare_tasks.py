"""job=compare on several tasks, each a comparison of its own; recipes of tasks, and the experiment of all of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from support.program import Lab
from support.task_lab import TaskLab

from analysis.loading import selection
from experiments.compare import confirm, select
from experiments.compare.record import write_record
from experiments.compose import check_recipe
from experiments.data import TASKS
from experiments.paths import CONF, PUBLISHED
from zoo.errors import UserError

TWO = ["--multirun", "job=compare", "data=mqar,palindrome", "model=transformer,lfm2"]
BEST = {"mqar": 1e-3, "palindrome": 1e-2}
RECIPES = sorted((CONF / "recipe" / "two_core").glob("*.yaml"))


@pytest.fixture
def selections(task_lab: TaskLab, pretend) -> list[select.Selection]:
    """Two models on two tasks that have other rates, selected."""
    pretend(lambda config: abs(math.log(config.optim.lr / BEST[config.data.name])))
    found = select.start(task_lab.compose(*TWO, "compare.seeds=2"))
    select.select(found, lambda: None)
    return found


def test_each_task_selects_its_own_rate_of_each_model(selections):
    chosen = {(s.config.data.name, s.config.model.preset): s.best.settings["optim.lr"] for s in selections}
    assert chosen == {(task, model): BEST[task] for task in BEST for model in ("transformer", "lfm2")}
    confirmed = [confirm.confirmations(one) for one in selections]
    assert [[(p.config.data.name, p.config.optim.lr) for p in plans] for plans in confirmed] == [
        [(task, BEST[task])] * 2 for task in BEST for _ in range(2)
    ]


def test_the_record_names_the_task_of_every_run(selections, tmp_path: Path):
    write_record(tmp_path, selections, [confirm.confirmations(one) for one in selections])
    told = selection.read_selection(tmp_path)
    assert told["task"].unique().tolist() == [
        "mqar (length 16, pairs 2, vocab 24, power 0.01, fill blank)",
        "palindrome (items 12, values 16)",
    ]
    names = [f"{model} {task}" for task in BEST for model in ("transformer", "lfm2")]
    assert told["model"].unique().tolist() == names
    best = told[told["chosen"]].set_index("model")
    assert best["lr"].tolist() == [BEST[name.split()[1]] for name in names]
    assert (best["confirmed_by"].str.split().str.len() == 2).all()


def test_options_of_one_task_are_compared_by_themselves_and_equal_ones_refused(task_lab: TaskLab):
    command = ["--multirun", "job=compare", "data=mqar", "model=transformer", "evaluate.splits=[test]"]
    two = select.start(task_lab.compose(*command, "data.tasks.mqar.pairs=2,3"))
    assert len({trial.planned.run for one in two for trial in one.trials}) == 6
    refused = task_lab.here(*command, "data.tasks.mqar.pairs=2,3", "data.tasks.parity.length=20,21")
    assert (refused.status, "one model several times" in refused.err) == (2, True), refused


def test_records_of_before_are_of_no_task():
    old = selection.read_selection(PUBLISHED / "comparison")
    assert set(old["task"]) == {""}
    assert len(old) > 2


def test_a_recipe_is_that_of_the_data_and_the_command_wins(lab: Lab):
    lab.arguments = lambda *words: list(words)
    words = ["--multirun", "recipe=two_core", "data=mqar,permutations", "optim.clip=7"]
    for config, task in zip(lab.compose(*words), ("mqar", "permutations"), strict=True):
        recipe = yaml.safe_load((CONF / "recipe" / "two_core" / f"{task}.yaml").read_text())
        assert config.data.batch_size == recipe["data"]["batch_size"]
        assert config.trainer.max_steps == recipe["trainer"]["max_steps"]
        assert config.optim.clip == 7
    (plain,) = lab.compose("data=mqar")
    assert (plain.trainer.max_steps, plain.data.batch_size) == (300, 8)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_of_a_task_and_sets_its_options_alone(path: Path):
    tasks = yaml.safe_load(path.read_text())["data"].get("tasks", {})
    assert path.stem in TASKS
    assert set(tasks) <= {path.stem}


def test_a_recipe_without_settings_for_the_data_is_refused(lab: Lab):
    outcome = lab.here("recipe=two_core")
    assert (outcome.status, "recipe=two_core has no settings for data=text, only for" in outcome.err) == (
        2,
        True,
    )
    outcome = lab.here("recipe=two_cores")
    assert "did you mean 'two_core'? Choose one with recipe=NAME" in outcome.err
    with pytest.raises(UserError, match=r"data=parity, only for flip_flop, mqar"):
        check_recipe("two_core", "parity")
    check_recipe(None, "parity")


@pytest.mark.parametrize(("size", "models", "tasks"), [("small", 11, 6), ("smoke", 4, 2)])
def test_the_experiment_of_tasks(lab: Lab, size: str, models: int, tasks: int):
    lab.arguments = lambda *words: ["+experiment=tasks", *words]
    configs = lab.compose(f"size={size}")
    assert len({repr(config.model) for config in configs}) == models
    assert len({config.data.name for config in configs}) == tasks
    assert len(configs) == models * tasks
    assert {config.match for config in configs} == {"params"}

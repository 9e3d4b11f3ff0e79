"""job=compare on several tasks, each a comparison of its own; recipes of tasks, and the experiment of all of them."""

import math
from pathlib import Path

import pytest
import yaml
from support.program import Lab

from analysis.loading import tables
from experiments.configuration.compose import check_recipe
from experiments.data import TASKS
from experiments.jobs import compare
from experiments.system.paths import CONF, PUBLISHED
from zoo.errors import UserError

TWO = ["--multirun", "job=compare", "data=mqar,palindrome", "model=transformer,lfm2"]
BEST = {"mqar": 1e-3, "palindrome": 1e-2}
RECIPES = sorted((CONF / "recipe" / "two_core").glob("*.yaml"))


@pytest.mark.slow
def test_each_task_selects_its_own_rate_of_each_model_and_is_named_in_the_record(task_lab, pretend, capsys):
    pretend(lambda config: abs(math.log(config.optim.lr / BEST[config.data.name])))
    compare.compare(task_lab.compose(*TWO, "compare.seeds=2", "compare.extend=0"))
    said = capsys.readouterr().out
    assert "2 models on 2 tasks: 12 runs to select; then 8 to confirm" in said
    assert "selected for lfm2 palindrome seed 0: optim.lr=0.01" in said
    told = tables.read_selection(task_lab.results / "default")
    assert told["task"].unique().tolist() == [
        "mqar (length 16, pairs 2, vocab 24, power 0.01, fill blank)",
        "palindrome (items 12, values 16)",
    ]
    names = [f"{model} {task}" for task in BEST for model in ("transformer", "lfm2")]
    assert told["model"].unique().tolist() == names
    best = told[told["chosen"]].set_index("model")
    assert best["lr"].tolist() == [BEST[name.split()[1]] for name in names]
    confirmed = [run for runs in best["confirmed_by"] for run in runs.split()]
    assert {folder.parent.name for folder in task_lab.results.glob("default/*/summary.json")} == set(
        confirmed
    )
    assert len(confirmed) == 8


def test_records_of_before_are_of_no_task():
    old = tables.read_selection(PUBLISHED / "comparison")
    assert set(old["task"]) == {""}
    assert len(old) > 2


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_recipe_without_settings_for_the_data_is_refused(lab: Lab):
    outcome = lab.here("recipe=two_core")
    assert (outcome.status, "recipe=two_core has no settings for data=text, only for" in outcome.err) == (
        2,
        True,
    )
    outcome = lab.here("recipe=two_cores")
    assert "did you mean 'two_core'?" in outcome.err
    assert "Choose one with recipe=NAME" in outcome.err
    with pytest.raises(UserError, match=r"data=parity, only for flip_flop, fuzzy_recall"):
        check_recipe("two_core", "parity")
    check_recipe(None, "parity")


@pytest.mark.parametrize(
    ("words", "models", "tasks"),
    [pytest.param("model=mom", 1, 6, marks=pytest.mark.long), ("size=smoke", 4, 2)],
)
@pytest.mark.slow
def test_the_experiment_of_tasks(lab: Lab, words: str, models: int, tasks: int):
    lab.arguments = lambda *words: ["+experiment=tasks", *words]
    configs = lab.compose(words)
    assert len({repr(config.model) for config in configs}) == models
    assert len({config.data.name for config in configs}) == tasks
    assert len(configs) == models * tasks
    assert {config.match for config in configs} == {"params"}
    assert {config.compare.extend for config in configs} == {int(words != "size=smoke")}

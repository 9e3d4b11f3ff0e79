"""job=compare on several tasks, each a comparison of its own; recipes, grids, scores beyond the trained length."""

import math
from pathlib import Path

import pytest
import yaml
from support.program import Lab
from support.recorded import check
from support.steady import set_by_formula, tiny_study

from analysis.loading import tables
from experiments.compare import length_generalization, select
from experiments.configuration.compose import check_recipe
from experiments.data import TASKS
from experiments.jobs import compare
from experiments.planning.plan import Plan, plan
from experiments.runs import read_metrics
from experiments.system.paths import CONF, PUBLISHED
from zoo import LanguageModel
from zoo import io as zoo_io
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


RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.parametrize(("tried", "beyond"), [([1e-300, 1e-200], "0"), ([1e200, 1e300], "inf")])
def test_a_grid_that_may_grow_to_a_rate_that_is_none_is_refused_at_either_end(tmp_path, tried, beyond):
    with pytest.raises(UserError, match=f"compare.extend=1 may lead to optim.lr={beyond}: "):
        select.start([tiny_study(tmp_path, compare__rates=tried, compare__extend=1)])


@pytest.mark.slow
def test_runs_of_every_model_are_scored_beyond_the_trained_length(tmp_path: Path, pretend, monkeypatch):
    pretend(lambda config: config.optim.lr)
    scored: list[Plan] = []
    monkeypatch.setattr(length_generalization, "score_longer", scored.extend)
    asked = {"models": ["transformer", "kda_pure"], "longer": "length=48", "seeds": 2, "extend": 0}
    keys = {f"compare__{key}": value for key, value in asked.items()}
    config = tiny_study(tmp_path, data__tasks__mqar__length=16, data__tasks__mqar__pairs=2, **keys)
    compare.compare([config])
    runs = [(planned.config.model.preset, planned.config.seed) for planned in scored]
    assert runs == [("transformer", 1), ("transformer", 2), ("kda_pure", 1), ("kda_pure", 2)]


def test_every_longer_task_has_the_vocabulary_that_was_trained_on(tmp_path: Path):
    with pytest.raises(UserError, match="'vocab=64,99' changes the vocabulary"):
        length_generalization.longer_tasks(tiny_study(tmp_path, compare__longer="vocab=64,99"))


def test_scores_beyond_the_trained_length(tmp_path: Path):
    config = tiny_study(
        tmp_path,
        compare__longer="length=16,48",
        evaluate__windows=9,
        data__tasks__mqar__length=16,
        data__tasks__mqar__pairs=2,
    )
    planned = plan(config)
    model = set_by_formula(LanguageModel(config.model, vocab_size=64, seq_len=16), 0.3)
    planned.folder.path.mkdir(parents=True)
    zoo_io.export(model, planned.folder.path)
    length_generalization.score_longer([planned])
    before = (planned.folder.path / "lengths.csv").read_text()
    length_generalization.score_longer([planned])
    labels = [data.tasks.mqar.length for data in length_generalization.longer_tasks(config)]
    check(
        RECORDED / "lengths.txt",
        [*before.splitlines(), f"{labels} {len(read_metrics(planned.folder.path / 'metrics.csv'))}"],
        relative=1e-4,
    )

"""job=compare: settings selected on the validation split alone, confirmed with seeds that selected nothing."""

import csv
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.program import Lab, assert_same_run, last_checkpoint

from analysis.loading import tables
from experiments.compare import select, time_estimate
from experiments.compare.select import Selection, start
from experiments.compare.selection_record import COLUMNS, write_record
from experiments.compare.trials import RATE, Trial
from experiments.configuration.schema import Config
from experiments.runs import METRICS, RunFolder
from experiments.system.paths import SELECTION
from experiments.training.lightning_modules import NonFinite
from zoo.errors import UserError

MODELS = ["--multirun", "model=transformer,lfm2", "model.depth=1", "model.d_model=16", "job=compare"]


def test_a_grid_grows_by_its_own_ratio():
    assert select.beyond([1e-3, 3e-3, 1e-2], select.HIGHEST) == 0.033
    assert select.beyond([1e-2, 1e-3, 3e-3], select.LOWEST) == 0.00033
    assert select.farthest([1e-3, 2e-3], 3) == (0.00013, 0.016)
    assert [select.edge_of(x, [1, 2, 3]) for x in (1, 2, 3)] == [select.LOWEST, "", select.HIGHEST]


def test_of_equal_losses_the_lowest_rate_is_taken_in_any_order():
    """A rate that diverged has an infinite loss, and may be the lowest."""
    outcomes = {1e-3: math.inf, 2e-3: 1.5, 3e-3: 1.5, 4e-3: 2.0, 5e-3: 1.5}
    trials = [SimpleNamespace(loss=loss, settings={RATE: rate}) for rate, loss in outcomes.items()]
    for order in itertools.permutations(trials):
        assert Selection(None, list(order)).best.settings[RATE] == 2e-3


@pytest.mark.parametrize("wrong", [[1e-3], [1e-3, 1e-3, 2e-3], []])
def test_grids_that_select_nothing_are_refused(wrong):
    with pytest.raises(UserError, match=r"compare\.rates"):
        select.check_rates(wrong)


def selected(lab: Lab, *more: str) -> list[Selection]:
    selections = start(lab.compose(*MODELS, "evaluate.splits=[validation,test]", *more))
    select.select(selections, lambda: None)
    return selections


def distance(best: float):
    return lambda config: abs(math.log(config.optim.lr / best))


@pytest.mark.slow
def test_the_lowest_validation_loss_wins_and_the_grid_grows_towards_it(lab: Lab, pretend):
    trained = pretend(distance(0.03))
    first, second = selected(lab)
    assert first.best.settings == {"optim.lr": 0.033}
    assert first.rates == second.rates == [1e-3, 3e-3, 1e-2, 0.033, 0.11]
    assert (first.edge, len(trained)) == ("", 10)
    assert {seed for _, _, seed in trained} == {0}
    again = selected(lab)
    assert len(trained) == 10, "what was complete was trained again"
    assert [s.rates for s in again] == [s.rates for s in (first, second)]


@pytest.mark.slow
def test_a_rate_that_diverges_is_an_outcome_and_not_repeated(lab: Lab, pretend):
    trained = pretend(lambda config: None if config.optim.lr > 5e-3 else distance(3e-3)(config))
    one, _ = selected(lab)
    assert one.best.settings["optim.lr"] == 3e-3
    assert [trial.loss for trial in one.trials][2] == math.inf
    count = len(trained)
    selected(lab)
    assert len(trained) == count
    pretend(lambda config: None)
    with pytest.raises(UserError, match=r"every run of .* diverged"):
        selected(lab, "trainer.max_steps=7")


@pytest.mark.slow
def test_other_settings_are_selected_together_with_the_rate(lab: Lab, pretend):
    pretend(lambda config: distance(3e-3)(config) + abs(config.optim.weight_decay - 0.5))
    one, _ = selected(lab, 'compare.grid=["optim.weight_decay=0.1,0.5"]')
    assert one.best.settings == {"optim.lr": 3e-3, "optim.weight_decay": 0.5}
    assert len(one.trials) == 6
    (run, *_) = select.confirmations(one)
    assert (run.config.optim.lr, run.config.optim.weight_decay) == (3e-3, 0.5)


HALVING = ["compare.halving=true", "trainer.max_steps=400", "trainer.val_every=30"]


@pytest.mark.slow
def test_halving_trains_the_better_half_to_the_end_and_the_grid_still_grows(lab, pretend, tmp_path):
    trained = pretend(distance(0.03))
    first, second = selected(lab, *HALVING)
    assert first.rates == second.rates == [1e-3, 3e-3, 1e-2, 0.033, 0.11]
    assert first.best.settings == {"optim.lr": 0.033}
    assert [trial.loss < math.inf for trial in first.trials] == [False, True, True, True, True]
    assert [trial.settings["optim.lr"] for trial in select.better_half(first.trials)] == [0.033, 1e-2, 0.11]
    parts = [entry for entry in trained if len(entry) == 4]
    assert len(parts) == 10
    assert {entry[3] for entry in parts} == {90}, "the last validation in the first quarter of 400 steps"
    assert len(trained) - len(parts) == 8
    selected(lab, *HALVING)
    assert len(trained) == 18, "what was trained, in part or whole, was trained again"
    write_record(tmp_path, [first, second], [[], []])
    told = tables.read_selection(tmp_path)
    assert told["status"].tolist() == ["pruned", "complete", "complete", "complete", "complete"] * 2
    assert told["validation_loss"].isna().tolist() == [True, False, False, False, False] * 2


@pytest.mark.parametrize(
    ("rows", "complete", "loss"),
    [
        (["60,validation,3", "90,train,1"], False, None),
        (["60,validation,3", "90,train,1", "90,validation,4"], False, 4.0),
        (["60,validation,3", "90,validation,4", "120,validation,2", "400,validation,1"], True, 4.0),
        (["30,validation,2", "60,validation,3"], True, 3.0),
    ],
    ids=["not there yet", "there", "trained to the end since", "ended before by its patience"],
)
def test_trials_are_halved_by_their_last_validation_in_the_first_quarter(tmp_path, rows, complete, loss):
    (tmp_path / METRICS).write_text("\n".join(["step,split,loss", *rows, ""]))
    if complete:
        (tmp_path / "summary.json").write_text("{}")
    config = Config()
    config.trainer.max_steps, config.trainer.val_every = 400, 30
    planned = SimpleNamespace(config=config, folder=RunFolder(tmp_path))
    assert select.early_loss(SimpleNamespace(diverged=False, planned=planned)) == loss
    assert select.early_loss(SimpleNamespace(diverged=True, planned=planned)) == math.inf, "behind all others"


@pytest.mark.long
def test_a_pruned_setting_is_left_at_a_quarter_and_the_others_end_as_if_never_paused(lab: Lab):
    words = [*MODELS[2:], "trainer.max_steps=8", "trainer.val_every=1", "trainer.checkpoint_every=3"]
    words += [
        "compare.seeds=1",
        "compare.extend=0",
        "compare.rates=[1e-3,3e-3,1e-2,3e-2]",
        "trainer.progress=false",
    ]
    outcome = lab.done(*words, "compare.halving=true", "name=halved")
    assert outcome.out.count("paused\n") == 4
    runs = [RunFolder(path) for path in (lab.results / "halved_selection").iterdir()]
    assert sum(run.complete for run in runs) == 2
    assert [last_checkpoint(run.path)["global_step"] for run in runs if not run.complete] == [2, 2]
    (chosen,) = [row.run for row in tables.read_selection(lab.results / "halved").itertuples() if row.chosen]
    assert lab.here(*words, "name=whole").status == 0
    halved, whole = (lab.results / f"{name}_selection" / chosen for name in ("halved", "whole"))
    assert_same_run(halved, whole)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ("optim.weigth_decay=1,2", "did you mean 'optim.weight_decay'?"),
        ("optim.weight_decay=much", "optim.weight_decay=much cannot be set"),
        ("optim.weight_decay", "write it as a sweep"),
        ("optim.lr=1,2", "job=compare cannot select"),
        ("seed=1,2", "job=compare cannot select"),
    ],
)
def test_grids_with_mistakes_are_refused_before_anything_runs(lab: Lab, grid, says):
    assert says in lab.refused(*MODELS, "evaluate.splits=[validation,test]", f'compare.grid=["{grid}"]')


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seed=0,1"], "give compare.seeds=N"),
        (["optim.lr=1e-3,3e-3"], "give compare.rates=[...]"),
        (["evaluate.splits=[validation]"], "scores the confirming runs on the test split"),
        (["trainer.log_every=5,6"], "same model several times"),
        (["compare.seeds=0"], "compare.seeds=0 must be at least 1"),
        (["compare.extend=-1"], "compare.extend=-1 must be at least 0"),
        (["compare.rates=[1e-3]"], "two or more different rates"),
    ],
)
def test_commands_with_mistakes_are_refused_before_anything_runs(lab: Lab, words, says):
    assert says in lab.refused(*MODELS, "evaluate.splits=[validation,test]", *words)


@pytest.mark.slow
def test_the_record_tells_every_run_the_chosen_one_and_who_confirms_it(lab: Lab, pretend, tmp_path: Path):
    pretend(lambda config: None if config.optim.lr > 5e-3 else distance(1e-3)(config))
    selections = selected(lab, "compare.extend=0", "compare.seeds=1")
    plans = [select.confirmations(one) for one in selections]
    write_record(tmp_path, selections, plans)
    rows = list(csv.DictReader((tmp_path / SELECTION).open()))
    assert [row["model"] for row in rows] == ["transformer"] * 3 + ["lfm2"] * 3
    assert [row["status"] for row in rows[:3]] == ["complete", "complete", "diverged"]
    assert [(row["chosen"], row["edge"]) for row in rows[:3]] == [("True", "lowest"), *[("False", "")] * 2]
    assert rows[0]["confirmed_by"] == plans[0][0].run
    assert (rows[2]["validation_loss"], float(rows[0]["validation_loss"])) == ("", 0.0)
    assert {row["run"] for row in rows} == {trial.planned.run for s in selections for trial in s.trials}


@pytest.mark.slow
def test_a_command_for_some_models_keeps_the_record_of_the_others(lab: Lab, pretend, tmp_path: Path):
    pretend(distance(3e-3))
    selections = selected(lab, "compare.seeds=1")
    plans = [select.confirmations(one) for one in selections]
    write_record(tmp_path, selections, plans)
    before = list(csv.DictReader((tmp_path / SELECTION).open()))
    write_record(tmp_path, selections[:1], plans[:1])
    after = list(csv.DictReader((tmp_path / SELECTION).open()))
    assert sorted(map(str, after)) == sorted(map(str, before))
    other = {**before[0], "task": "mqar (length 16)"}  # the same model, of another task
    with (tmp_path / SELECTION).open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(other)
    write_record(tmp_path, selections[:1], plans[:1])
    assert other in list(csv.DictReader((tmp_path / SELECTION).open()))
    more = dict.fromkeys((*COLUMNS, "more"), "lfm2")
    for columns in (("task", "model"), tuple(more)):  # of other programs
        values = ",".join(more[name] for name in columns)
        (tmp_path / SELECTION).write_text(f"{','.join(columns)}\n{values}\n")
        write_record(tmp_path, selections[:1], plans[:1])
        assert {row["model"] for row in csv.DictReader((tmp_path / SELECTION).open())} == {"transformer"}


def test_a_failure_is_an_outcome_only_where_the_loss_was_not_finite(tmp_path: Path):
    """A run that had no memory, say, is tried again: its rate may be the best."""
    trial = Trial(0, {RATE: 1e-3}, SimpleNamespace(folder=RunFolder(tmp_path)))
    for error, diverged in ((MemoryError("no memory left"), False), (NonFinite("the loss", 3, "head"), True)):
        trial.planned.folder.fail(error)
        assert (trial.diverged, trial.loss) == (diverged, math.inf)


def test_the_time_of_a_step_is_of_a_whole_batch_and_without_the_first_step(monkeypatch):
    """The first step makes what later ones find; here it takes 100 seconds, and each other one 2."""
    asked, clock = [], [0.0]

    class Step:
        seconds = 100.0

        def __init__(self, config, model, tokens) -> None:
            pass

        def __call__(self) -> None:
            clock[0] += self.seconds
            self.seconds = 2.0

    monkeypatch.setattr(time_estimate, "make_model", lambda *_: None)
    monkeypatch.setattr(
        time_estimate, "random_tokens", lambda config, batch, length, device: asked.append((batch, length))
    )
    monkeypatch.setattr(time_estimate, "TrainingStep", Step)
    monkeypatch.setattr(time_estimate.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(time_estimate.torch, "set_num_threads", lambda count: None)
    config = Config()
    config.data.batch_size, config.data.seq_len = 5, 24
    assert time_estimate.step_seconds(config) == 2.0
    assert asked == [(5, 24)]


def test_the_report_reads_the_columns_that_are_recorded():
    assert set(COLUMNS) == set(tables.COLUMNS)
    assert SELECTION == tables.FILE


@pytest.mark.slow
def test_a_model_is_selected_confirmed_and_not_trained_again(lab: Lab):
    command = [*MODELS, "model=transformer", "evaluate.splits=[validation,test]", "compare.rates=[1e-3,1e-2]"]
    command += ["compare.extend=0", "compare.seeds=1", "sweep.workers=1", "name=c"]
    outcome = lab.here(*command, "dry=true")
    assert "2 runs to select; then 1 to confirm\nabout " in outcome.out
    assert (outcome.status, lab.results.exists()) == (0, False)
    outcome = lab.done(*command)
    assert outcome.out.count("selected for ") == 1
    assert "1 model: 2 runs to select; then 1 to confirm" in outcome.out
    (run,) = lab.results.glob("c/*/summary.json")
    assert set(json.loads(run.read_text())["metrics"]) == {"validation", "test"}
    tried = sorted(lab.results.glob("c_selection/*/summary.json"))
    assert len(tried) == 2
    assert all(set(json.loads(path.read_text())["metrics"]) == {"validation"} for path in tried)
    stamps = {path: path.stat().st_mtime_ns for path in [run, *tried]}
    again = lab.here(*command)
    assert (again.status, again.out.count("0 to train")) == (0, 1)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.mark.slow
def test_a_complete_run_is_scored_on_more_splits_without_training(lab: Lab):
    assert lab.here("evaluate.splits=[validation]").status == 0
    run = RunFolder(lab.run_folder())
    before, weights = run.summary(), (run.path / "model.safetensors").read_bytes()
    outcome = lab.done("evaluate.splits=[validation,test]")
    assert RunFolder(lab.run_folder()) == run, "the splits to score are no part of a run's name"
    after = run.summary()
    assert "test: loss" in outcome.out
    assert after["metrics"]["validation"] == before["metrics"]["validation"]
    assert after["scored_later"].keys() == {"test"}
    assert (run.path / "model.safetensors").read_bytes() == weights
    assert {k: v for k, v in after.items() if k not in ("metrics", "scored_later")} == {
        k: v for k, v in before.items() if k != "metrics"
    }
    lab.done("evaluate.splits=[validation,test]", "name=whole")
    (other,) = lab.results.glob("whole/*")
    assert other.name == run.path.name
    assert RunFolder(other).summary()["metrics"]["test"] == after["metrics"]["test"]

"""Grids that grow, halving, records of selections, scores beyond the trained length, costs in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recorded import check
from support.steady import changed, masked, refusal, set_by_formula, tiny_study

from experiments.compare import length_generalization, select, time_estimate
from experiments.compare.selection_record import write_record
from experiments.compare.trials import Trial, combinations, make_trial, with_settings
from experiments.configuration.compose import architectures
from experiments.jobs import compare
from experiments.planning.plan import Plan, plan
from experiments.runs import read_metrics
from zoo import LanguageModel
from zoo import io as zoo_io
from zoo.errors import UserError

RECORDED = Path(__file__).parent / "recorded"


def test_grids():
    def lines() -> Iterator[str]:
        for grid in ([1e-3, 1e-2], [3e-3, 1e-3, 1e-2], [1.0, 3.0]):
            yield (
                f"{grid}: {select.beyond(grid, select.LOWEST)} {select.beyond(grid, select.HIGHEST)} "
                f"{[select.farthest(grid, n) for n in (0, 1, 2)]}"
            )
            yield f"  edges {[select.edge_of(rate, grid) for rate in (1e-3, 3e-3, 1e-2, 0.5)]}"
        for trials, halved in ((5, True), (4, True), (1, True), (5, False)):
            yield f"{trials} {halved}: {time_estimate._whole_runs(trials, halved)}"
        yield time_estimate.minutes(90.0, 600.0)
        for grid in ([], ["a.b=1,2", "c=x"], ["a=[1,2]"], ["a=choice(1,2)"], ["a=1", "a=2"], ["a=null,true"]):
            yield f"{grid}: {refusal(lambda grid=grid: list(combinations(grid)))}"
        for word in (
            "seed=1",
            "job=x",
            "name=x",
            "results=x",
            "data=mqar",
            "evaluate.stride=3",
            "compare.seeds=1",
            "optim.lr=1",
            "optim.lr_min=1",
        ):
            yield f"{word}: {refusal(lambda word=word: list(combinations([word], 'compare.models: x')))}"

    check(RECORDED / "grids.txt", lines())


def test_trials_and_their_confirmation(tmp_path: Path):
    def lines() -> Iterator[str]:
        config = tiny_study(tmp_path, seed=4, evaluate__windows=9)
        trial = make_trial(1, config, {"optim.lr": 0.03, "optim.weight_decay": 0.5})
        own = trial.planned.config
        yield f"{own.name} {own.evaluate.splits} {own.evaluate.windows} {own.optim} {trial.model}"
        yield f"{trial.diverged} {trial.loss}"
        yield refusal(with_settings, config, {"optim.nothing": 1})
        yield refusal(with_settings, config, {"optim.weight_decay": "x"}, "compare.models: 'y'").partition(
            "("
        )[0]
        trial.planned.folder.begin("", {}, {})
        trial.planned.folder.finish({"metrics": {"validation": {"loss": 1.5}}})
        yield f"{trial.loss}"
        best = select.Selection(config, [Trial(0, {"optim.lr": 0.01}, trial.planned)])
        found = select.confirmations(best)
        configs = [planned.config for planned in found]
        yield f"{[(one.seed, one.optim.lr, one.name, one.evaluate.splits, one.evaluate.windows) for one in configs]}"
        for scored in ({}, {"test": {"loss": 1.5}}):  # settings are never chosen by a test loss
            trial.planned.folder.finish({"metrics": scored})
            yield refusal(lambda: trial.loss)

    check(RECORDED / "trials.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


def test_a_selection_and_its_record(tmp_path: Path, pretend):
    """Two models, one best at an end, one that diverges at a rate; who is pruned; ties go to the lower rate."""

    def loss(config):
        rate, kda = config.optim.lr, config.model.preset == "kda_pure"
        if kda and rate > 0.02:
            return None
        return round(abs(rate - 0.02) if not kda else max(0.25, abs(rate - 0.002)), 6)

    def lines() -> Iterator[str]:
        for name, keys in (
            ("plain", {}),
            ("halved", {"compare__halving": True, "compare__seeds": 2}),
        ):
            trained = pretend(loss)
            config = tiny_study(tmp_path, name=name, **keys)
            models = [
                changed(config, model=architectures(config.model)[preset])
                for preset in ("transformer", "kda_pure")
            ]
            selections = select.start(models)
            rounds: list[str] = []
            folder = tmp_path / name
            yield (
                f"{name}: "
                f"{refusal(select.select, selections, lambda rounds=rounds: rounds.append('round'))} "
                f"{len(rounds)} rounds"
            )
            plans = [select.confirmations(selection) for selection in selections]
            select.confirm(plans)
            yield f"  trained {trained}"
            yield (
                f"  "
                f"{[(selection.rates, selection.edge, selection.best.settings) for selection in selections]}"
            )
            write_record(folder, selections, plans)
            names = {planned.run: "<run>" for group in plans for planned in group}
            names |= {trial.planned.run: "<trial>" for selection in selections for trial in selection.trials}
            yield from masked((folder / "selection.csv").read_text().splitlines(), names)
            if keys.get("compare__halving"):
                trial = selections[0].trials[0]
                yield (
                    f"  halved at {select.halving_step(trial.planned.config)}, "
                    f"{select.early_loss(trial)}, {select.first_part(trial).config.trainer.pause_at}"
                )
                yield f"  better {[one.settings for one in select.better_half(selections[0].trials)]}"
        config = tiny_study(tmp_path, name="lost")
        pretend(lambda config: None)
        selections = select.start([config])
        yield refusal(select.select, selections, lambda: None)
        for value in ([True, False, True], [True]):
            yield refusal(select._require, value)

    check(RECORDED / "selection.txt", masked(list(lines()), {str(tmp_path): "<results>"}))


@pytest.mark.parametrize(("tried", "beyond"), [([1e-300, 1e-200], "0"), ([1e200, 1e300], "inf")])
def test_a_grid_that_may_grow_to_a_rate_that_is_none_is_refused_at_either_end(
    tmp_path: Path, tried: list[float], beyond: str
):
    with pytest.raises(UserError, match=f"compare.extend=1 may lead to optim.lr={beyond}: "):
        select.start([tiny_study(tmp_path, compare__rates=tried, compare__extend=1)])


@pytest.mark.slow
def test_runs_of_every_model_are_scored_beyond_the_trained_length(tmp_path: Path, pretend, monkeypatch):
    pretend(lambda config: config.optim.lr)
    scored: list[Plan] = []
    monkeypatch.setattr(length_generalization, "score_longer", scored.extend)
    config = tiny_study(
        tmp_path,
        compare__models=["transformer", "kda_pure"],
        compare__longer="length=48",
        compare__seeds=2,
        compare__extend=0,
        data__tasks__mqar__length=16,
        data__tasks__mqar__pairs=2,
    )
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

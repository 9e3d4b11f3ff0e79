"""Grids at the end of the numbers, and scores beyond the trained length."""

from pathlib import Path

import pytest
from support.recorded import check
from support.steady import set_by_formula, tiny_study

from experiments.compare import length_generalization, select
from experiments.jobs import compare
from experiments.planning.plan import Plan, plan
from experiments.runs import read_metrics
from zoo import LanguageModel
from zoo import io as zoo_io
from zoo.errors import UserError

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

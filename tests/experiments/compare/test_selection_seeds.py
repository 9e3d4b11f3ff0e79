"""compare.selection_seeds: the two best settings of a model are trained with more seeds before one is chosen."""

import csv
import math
from pathlib import Path

import pytest
from support.program import Lab
from support.steady import changed, tiny_study

from analysis.loading.tables import read_selection
from experiments.compare import select, time_estimate
from experiments.compare.select import Selection, confirmations
from experiments.compare.selection_record import write_record
from experiments.compare.trials import RATE
from experiments.configuration.schema import Config
from experiments.system.paths import SELECTION
from zoo.errors import UserError

LOW, MIDDLE, HIGH = RATES = [1e-3, 3e-3, 1e-2]
FIRST, SECOND, THIRD = SEEDS = [4, 1004, 2004]


def _config(tmp_path: Path, **keys) -> Config:
    config = tiny_study(
        tmp_path,
        seed=FIRST,
        compare__rates=RATES,
        compare__extend=0,
        compare__selection_seeds=3,
        evaluate__splits=["validation", "test"],
    )
    return changed(config, **keys)


def by_seed(losses: dict[float, list[float | None]]):
    """The loss of a rate by its seed, in the order of SEEDS; of the last one also with any other seed."""

    def loss(config: Config) -> float | None:
        values = dict(zip(SEEDS, losses[config.optim.lr], strict=False))
        return values.get(config.seed, losses[config.optim.lr][-1])

    return loss


def selected(config: Config, record=lambda: None) -> Selection:
    (found,) = select.start([config])
    select.select([found], record)
    return found


LUCKY = {LOW: [5.3], MIDDLE: [5.01, 5.15, 5.17], HIGH: [5.02, 5.03, 5.01]}


def test_a_setting_that_was_lucky_with_the_first_seed_is_not_chosen(tmp_path: Path, pretend):
    trained = pretend(by_seed(LUCKY))
    assert selected(_config(tmp_path, compare__selection_seeds=1)).best.settings == {RATE: MIDDLE}
    assert [seed for *_, seed in trained] == [FIRST] * 3
    found = selected(_config(tmp_path))
    assert found.best.settings == {RATE: HIGH}
    assert found.loss(found.best) == pytest.approx(5.02)
    # The runs of the first seed are those of a selection by one seed.
    assert [entry[1:] for entry in trained[3:]] == [(r, s) for r in (MIDDLE, HIGH) for s in SEEDS[1:]]
    selected(_config(tmp_path))
    assert len(trained) == 7, "what was complete was trained again"


def test_a_third_setting_takes_the_place_of_one_that_falls_behind_it(tmp_path: Path, pretend):
    """What was seen with fewer seeds is not chosen, and not passed over either."""
    trained = pretend(by_seed({LOW: [5.03, 5.2], MIDDLE: [5.01, 5.15], HIGH: [5.02, 5.05]}))
    found = selected(_config(tmp_path))
    assert found.best.settings == {RATE: HIGH}
    assert [len(found.runs(trial)) for trial in found.trials] == [3, 3, 3]
    assert [rate for _, rate, seed in trained if seed == SECOND] == [MIDDLE, HIGH, LOW]


def test_a_grid_grows_again_where_the_means_choose_a_rate_at_its_end(tmp_path: Path, pretend):
    beyond, farther = 0.033, 0.11
    trained = pretend(by_seed({**LUCKY, beyond: [4.99, 5.0], farther: [5.5]}))
    found = selected(_config(tmp_path, compare__extend=2))
    assert found.rates == [*RATES, beyond, farther]
    assert (found.best.settings, found.edge) == ({RATE: beyond}, "")
    order = [(rate, seed) for _, rate, seed in trained]
    assert order[3:] == [
        *((r, s) for r in (MIDDLE, HIGH) for s in SEEDS[1:]),
        (beyond, FIRST),
        (farther, FIRST),
        *((beyond, s) for s in SEEDS[1:]),
    ]
    at_end = selected(_config(tmp_path, name="less", compare__extend=0))
    assert (at_end.best.settings, at_end.edge) == ({RATE: HIGH}, "highest")


def test_one_seed_that_diverges_makes_the_mean_infinite(tmp_path: Path, pretend):
    pretend(by_seed({**LUCKY, HIGH: [5.02, None, 5.01]}))
    found = selected(_config(tmp_path))
    assert [found.loss(trial) for trial in found.trials] == pytest.approx([5.3, 5.11, math.inf])
    assert found.best.settings == {RATE: MIDDLE}
    pretend(by_seed({rate: [5.0, None] for rate in RATES}))
    with pytest.raises(UserError, match=r"a run of every setting of transformer mqar seed 4 diverged at"):
        selected(_config(tmp_path, name="lost"))


def test_halving_is_of_the_first_seed_and_what_it_leaves_is_no_contender(tmp_path: Path, pretend):
    trained = pretend(by_seed({LOW: [5.3], MIDDLE: [5.01, 5.4], HIGH: [5.02, 5.03]}))
    found = selected(_config(tmp_path, compare__halving=True))
    assert [entry[1:] for entry in trained if len(entry) == 4] == [
        (rate, FIRST, select.halving_step(found.config)) for rate in RATES
    ]
    assert [len(found.runs(trial)) for trial in found.trials] == [1, 3, 3]
    assert found.best.settings == {RATE: HIGH}


def test_other_settings_have_their_own_further_seeds(tmp_path: Path, pretend):
    pretend(lambda config: by_seed(LUCKY)(config) + config.optim.weight_decay)
    found = selected(_config(tmp_path, compare__grid=["optim.weight_decay=0.5,0.1"]))
    assert found.best.settings == {RATE: HIGH, "optim.weight_decay": 0.1}
    repeated = [tuple(trial.settings.values()) for trial in found.trials if len(found.runs(trial)) > 1]
    assert repeated == [(MIDDLE, 0.1), (HIGH, 0.1)]


@pytest.mark.parametrize("confirming", [1, 3, 999])
def test_no_seed_both_selects_and_confirms(tmp_path: Path, pretend, confirming: int):
    pretend(by_seed(LUCKY))
    config = _config(tmp_path, compare__seeds=confirming)
    found = selected(config)
    selecting = {run.planned.config.seed for trial in found.trials for run in found.runs(trial)}
    assert selecting == set(SEEDS) == {FIRST, *select.further_seeds(config)}
    assert not selecting & {planned.config.seed for planned in confirmations(found)}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"compare__selection_seeds": 0}, r"compare.selection_seeds=0 must be at least 1"),
        ({"compare__seeds": 1000}, r"compare.seeds=1000 would confirm with seed 1004, which also selects"),
        ({"seed": 2**63 - 1500}, r"must be at least 0 and at most"),
    ],
)
def test_seeds_that_cannot_be_are_refused_before_anything_is_trained(tmp_path: Path, keys: dict, says: str):
    with pytest.raises(UserError, match=says):
        select.start([_config(tmp_path, **keys)])
    select.start([_config(tmp_path, compare__selection_seeds=1, compare__seeds=1000)])


def test_the_cost_counts_the_further_seeds_of_two_settings(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(time_estimate, "step_seconds", lambda config: 1 / config.trainer.max_steps)

    def runs(**keys) -> tuple[float, float]:
        return time_estimate.core_seconds(select.start([_config(tmp_path, compare__seeds=3, **keys)]))

    assert runs(compare__selection_seeds=1) == pytest.approx((3 + 3, 3 + 3))
    assert runs() == pytest.approx((3 + 3 + 4, 3 + 3 + 4))
    assert runs(compare__extend=1) == pytest.approx((3 + 3 + 4, 3 + 5 + 4))
    assert runs(compare__rates=RATES[:2], compare__halving=True) == pytest.approx((3 + 1.25 + 2,) * 2)


def test_the_record_has_a_row_a_run_and_marks_all_seeds_of_the_chosen_setting(tmp_path: Path, pretend):
    pretend(by_seed({**LUCKY, LOW: [None], MIDDLE: [5.01, 5.15, None]}))
    found = selected(_config(tmp_path))
    write_record(tmp_path, [found], [confirmations(found)])
    rows = list(csv.DictReader((tmp_path / SELECTION).open()))
    assert [(float(row["lr"]), int(row["seed"])) for row in rows] == [
        (LOW, FIRST),
        *((rate, seed) for rate in (MIDDLE, HIGH) for seed in SEEDS),
    ]
    assert [row["status"] for row in rows] == [
        *("diverged", "complete", "complete", "diverged"),
        *["complete"] * 3,
    ]
    chosen = read_selection(tmp_path)[["chosen", "edge", "confirmed_by"]]
    assert chosen["chosen"].tolist() == [False] * 4 + [True] * 3
    assert chosen["edge"].tolist() == [""] * 4 + ["highest"] * 3
    assert chosen["confirmed_by"].nunique() == 2


@pytest.mark.long
def test_a_real_selection_by_two_seeds_goes_on_where_it_was_interrupted(lab: Lab, monkeypatch):
    words = ["--multirun", "job=compare", "model=transformer", "model.depth=1", "trainer.max_steps=4"]
    words += ["trainer.val_every=2", "compare.rates=[1e-3,3e-3,1e-2]", "compare.extend=0", "compare.seeds=1"]
    words += ["compare.selection_seeds=2", "evaluate.splits=[validation,test]", "sweep.workers=1"]
    repeated = select.repeats
    monkeypatch.setattr(select, "repeats", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    lab.here(*words)
    before = {path: path.stat().st_mtime_ns for path in lab.results.glob("default_selection/*/summary.json")}
    assert len(before) == 3
    monkeypatch.setattr(select, "repeats", repeated)
    outcome = lab.done(*words)
    assert "of 2 seeds (rates tried: 0.001, 0.003, 0.01)" in outcome.out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    told = read_selection(lab.results / "default")
    assert set(told["seed"]) == {0, 1000}
    assert told.groupby("lr")["validation_loss"].nunique().sum() == len(told) >= 5
    (best,) = set(told.loc[told["chosen"], "lr"])
    means = told[told.groupby("lr")["seed"].transform("nunique") == 2].groupby("lr")["validation_loss"].mean()
    assert means.idxmin() == best
    (confirmed,) = set(told.loc[told["chosen"], "confirmed_by"])
    assert (lab.results / "default" / confirmed / "summary.json").is_file()

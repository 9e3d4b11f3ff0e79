"""Notices that a reviewer would write: runs that ended too early, and losses that context hardly changes."""

import dataclasses

import pandas as pd
import pytest

from analysis import load_results
from analysis.caveats import (
    caveats,
    context_gains,
    context_use_caveats,
    last_falls,
    seeds_apart,
    still_falling_caveats,
)


def with_curve(run, losses: dict[int, float]) -> None:
    lines = [f"{step},{step},validation,{loss}" for step, loss in losses.items()]
    (run / "metrics.csv").write_text("\n".join(["step,tokens,split,loss", *lines]) + "\n")


@pytest.fixture
def study(tmp_path, write_run):
    """Two seeds, 0.02 apart, whose validation loss falls by this much in the last fifth of 300 steps."""

    def make(fall: float, *seeds: int, **changes):
        for seed in seeds or (0, 1):
            run = write_run(tmp_path / "exp", seed=seed, **changes)
            start = 3.0 + 0.02 * seed
            with_curve(run, {200: start + 1, 240: start + fall, 300: start})
        return load_results(tmp_path / "exp")

    return make


def test_a_fall_at_the_end_is_told_where_it_exceeds_what_seeds_differ_by(study):
    (said,) = still_falling_caveats(study(0.1))
    assert said.startswith("still falling: in the last 20% of its steps")
    assert "transformer 0.100 (seeds of one model differ by 0.014" in said


@pytest.mark.parametrize("fall", [0.0, 0.012, -0.3])
def test_a_fall_within_the_seeds_is_none(study, fall):
    results = study(fall)
    assert seeds_apart(results)["transformer"] == pytest.approx(0.02 / 2**0.5)
    assert last_falls(results)["transformer"] == pytest.approx(fall)
    assert still_falling_caveats(results) == []


def test_one_noisy_model_does_not_hide_that_another_still_falls(tmp_path, write_run):
    """Six models with seeds 0.01 apart that fall by 0.05, and one with seeds 2 apart."""
    for place, apart in enumerate([0.01] * 6 + [2.0]):
        for seed in (0, 1, 2):
            run = write_run(tmp_path / "exp", name=f"m{place}", option=place, seed=seed)
            last = 3.0 + apart * seed
            with_curve(run, {200: last + 1, 240: last + 0.05, 300: last})
    results = load_results(tmp_path / "exp")
    apart = seeds_apart(results).sort_values()
    assert len(apart) == 7
    assert apart.iloc[-1] == pytest.approx(2.0)
    assert (apart.iloc[:-1] < 0.05).all()
    (said,) = still_falling_caveats(results)
    assert said.count(" 0.050") == 6
    assert apart.index[-1] not in said.partition(": ")[2]


def test_with_one_seed_a_hundredth_is_the_limit(study):
    (said,) = still_falling_caveats(study(0.011, 0))
    assert "seeds" not in said


def test_runs_that_stopped_early_or_were_validated_once_are_left_out(study, tmp_path, write_run):
    with_curve(write_run(tmp_path / "exp", name="once", option=1), {300: 3.0})
    assert still_falling_caveats(study(0.1, stopped="early")) == []


def measured(results, losses: dict[int, tuple[float, float]]):
    """The results with the loss at positions 0 to 16 and 64 to 128 by seed; in between and beyond it says nothing."""
    rows = [
        (run.experiment, run.run, run.label, run.seed, "position", start, end, "loss", value, 64)
        for run in results.runs.itertuples()
        for (start, end), value in zip(
            [(0, 16), (64, 128), (16, 64), (128, 256)], (*losses[run.seed], 0.0, 9.0), strict=True
        )
    ]
    names = ["experiment", "run", "label", "seed", "axis", "start", "end", "measure", "value", "count"]
    table = pd.DataFrame(rows, columns=names)
    extra = dict.fromkeys(("name", "layer", "part", "head", "block", "split"), pd.NA)
    return dataclasses.replace(
        results,
        tables={
            "measures": table.assign(step=300, **extra).astype(
                {"seed": "Int64", "start": "float64", "end": "float64", "count": "float64"}
            )
        },
    )


@pytest.mark.slow
def test_context_that_changes_no_more_than_the_seed_is_told(study):
    results = measured(study(0.0), {0: (5.0, 4.98), 1: (5.1, 5.02)})
    gains = context_gains(results).loc["transformer"]
    assert gains.to_dict() == pytest.approx({"mean": 0.05, "spread": 0.06})
    (said,) = context_use_caveats(results)
    assert said.startswith("context hardly used: from the first 12% of the positions to the second half")
    assert "transformer +0.050" in said
    assert said in caveats(results)


def test_positions_count_with_their_tokens(study):
    """Of 64 tokens with a loss of 4.8 and 192 with one of 4.4 the mean is 4.5."""
    results = measured(study(0.0, 0), {0: (5.0, 4.8)})
    rows = results.tables["measures"]
    later = rows[rows["start"] == 64.0].assign(start=100.0, value=4.4, count=192.0)
    both = dataclasses.replace(results, tables={"measures": pd.concat([rows, later], ignore_index=True)})
    assert context_gains(both)["mean"].item() == pytest.approx(0.5)


def test_with_one_seed_only_a_rising_loss_is_told(study):
    results = study(0.0, 0)
    assert context_use_caveats(measured(results, {0: (5.0, 4.9)})) == []
    assert len(context_use_caveats(measured(results, {0: (5.0, 5.1)}))) == 1

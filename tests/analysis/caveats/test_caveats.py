"""What spoils a comparison is told where it does, in one sentence: settings, machines, early ends, unused context."""

import dataclasses

import pandas as pd
import pytest

from analysis import across_machines, load_results
from analysis.caveats import (
    caveats,
    context_gains,
    context_use_caveats,
    last_falls,
    seeds_apart,
    still_falling_caveats,
)
from analysis.loading.tables import COLUMNS

OTHERWISE = [
    ({"commit": "f" * 40}, "runs from different commits: 0123456789 (2 runs) and ffffffffff (1 run)."),
    (
        {"dirty": True},
        "uncommitted changes: 1 of 3 runs came from a dirty working tree, which no commit describes.",
    ),
    (
        {"versions": {"torch": "2.14.0"}},
        "runs with different versions of Python or the libraries; see the table of runs' machines.",
    ),
    ({"data": {"train": "stand-in"}}, "mixed training sets: pydocs (2 runs) and stand-in (1 run)."),
    ({"data": {"test": "stand-in"}}, "mixed test sets: pydocs (2 runs) and stand-in (1 run)."),
    (
        {"data": {"fingerprint": "beef"}},
        "the text behind these names differs between runs (different content fingerprints).",
    ),
    (
        {"data": {"train": "stand-in", "fingerprint": "beef"}},  # another name says so already
        "mixed training sets: pydocs (2 runs) and stand-in (1 run).",
    ),
    (
        {"data": {"vocab_size": 256, "fingerprint": "beef"}},
        "mixed tokenizers: bpe 4,096 (2 runs) and bpe 256 (1 run). Loss and perplexity per token cannot be "
        "compared; bits per byte and word perplexity can.",
    ),
    (
        {"recipe": {"tokens_per_step": 2048}},
        "unequal training budgets: 307k tokens (2 runs) and 614k tokens (1 run).",
    ),
    (
        {"recipe": {"steps": 150, "tokens_per_step": 2048}, "steps": 150},
        "equal tokens in unequal steps: 300 steps (2 runs) and 150 steps (1 run).",
    ),
    (
        {"steps": 200, "tokens": 204_800},
        "stopped before their budget was used: three seed 0 (205k tokens).",
    ),
    (
        {"recipe": {"warmup_steps": 50, "clip": 0.5}},
        "unequal recipes: steps of warm-up 30 (2 runs) and 50 (1 run); "
        "gradient norm limit 1.0 (2 runs) and 0.5 (1 run).",
    ),
]


def told(place, write_run, changes: dict) -> list[str]:
    """The notices of three models of one seed each, the last with these changes."""
    for name in ("one", "two"):
        write_run(place, name, option=name)
    write_run(place, "three", option="three", **changes)
    return caveats(load_results(place))


@pytest.mark.parametrize(("changes", "sentence"), OTHERWISE)
def test_a_run_that_differs_in_one_thing_gives_the_sentence_of_that_thing(
    tmp_path, write_run, changes, sentence
):
    usual = told(tmp_path / "usual", write_run, {})
    assert [text.split(":")[0] for text in usual] == [
        "one seed",
        "one learning rate, 0.003, for all models",
        "still falling",
        "context use not measured",
        "numbers of one machine (Example CPU, AVX512, 1 thread(s))",
    ]
    found = told(tmp_path / "other", write_run, changes)
    assert [text for text in found if text not in usual] == [sentence]
    assert [text for text in usual if text not in found] == []


def rates_told(place, write_run, **rates: list[float]) -> list[str]:
    for name, tried in rates.items():
        for rate in tried:
            write_run(place, name, option=name, recipe={"lr": rate, "lr_min": rate / 10})
    return [text for text in caveats(load_results(place)) if "learning rate" in text]


@pytest.mark.slow
def test_rates_that_favour_some_models_are_told(tmp_path, write_run):
    one = rates_told(tmp_path / "one", write_run, a=[3e-3], b=[3e-3])
    (sentence,) = one
    assert sentence.startswith("one learning rate, 0.003, for all models")
    unequal = rates_told(tmp_path / "unequal", write_run, a=[3e-3], b=[1e-3])
    assert unequal == ["unequal learning rates: 0.003 (1 run) and 0.001 (1 run)."]
    some = rates_told(tmp_path / "some", write_run, a=[3e-3, 1e-3], b=[3e-3], c=[1e-3])
    assert some == ["learning rates were swept for some models only: b and c had one each."]
    assert rates_told(tmp_path / "all", write_run, a=[3e-3, 1e-3], b=[3e-3, 1e-2]) == []
    assert rates_told(tmp_path / "alone", write_run, a=[3e-3]) == []
    (tmp_path / "unequal" / "selection.csv").write_text(
        f"{','.join(COLUMNS)}\na,#000000,0.003,optim.lr=0.003,0,0123456789ab,3.2,complete,True,,\n"
    )
    assert [text for text in caveats(load_results(tmp_path / "unequal")) if "learning rate" in text] == []


LOSSES = {"one": (3.00, 3.10), "two": (3.04, 3.08), "three": (3.30, 3.20)}
MOVED = {"one": (0.09, 0.05), "two": (-0.01, 0.01), "three": (0.0, 0.0)}


@pytest.fixture
def both(tmp_path, write_run):
    """Three models with two seeds on two machines: on the second the first model falls behind the second."""
    for machine, capability in (("a", "AVX512"), ("b", "AVX2")):
        for name, losses in LOSSES.items():
            for seed, loss in enumerate(losses):
                moved = MOVED[name][seed] if machine == "b" else 0.0
                write_run(
                    tmp_path / machine / "exp", name, seed, loss + moved,
                    model={"residual": name}, machine={"capability": capability},
                )  # fmt: skip
    return tmp_path / "a" / "exp", tmp_path / "b" / "exp"


def test_every_common_run_has_both_losses_and_the_ranks_of_its_model(both):
    table = across_machines(*both)
    assert table.attrs["metric"] == "test_loss"
    assert len(table) == 6
    rows = table.set_index(["label", "seed"])
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            row = rows.loc[(name, seed)]
            assert row["loss_a"] == pytest.approx(loss)
            assert row["difference"] == pytest.approx(MOVED[name][seed])
    assert rows["rank_a"].to_dict() == {
        (n, s): r for n, r in (("one", 1), ("two", 2), ("three", 3)) for s in (0, 1)
    }
    assert rows["rank_b"].xs(0, level="seed").to_dict() == {"one": 2, "two": 1, "three": 3}
    assert set(table["machine_a"]) == {"Example CPU, AVX512, 1 thread(s)"}
    assert set(table["machine_b"]) == {"Example CPU, AVX2, 1 thread(s)"}


@pytest.mark.slow
def test_a_report_of_two_says_how_far_the_same_ids_are_apart(both):
    said = caveats(load_results(both))
    assert not any(text.startswith("numbers of one machine") for text in said)
    (mixed,) = [text for text in said if text.startswith("mixed machines")]
    assert "AVX512, 1 thread(s) (6 runs)" in mixed
    assert "losses differ by rounding" in mixed
    (same,) = [text for text in said if "from several machines" in text]
    assert same.startswith("6 run(s) come from several machines")
    assert "test loss differs by up to 0.0900 (one seed 0)" in same


def test_machines_of_an_older_version_are_told_apart_by_their_processor(tmp_path, write_run):
    for seed, cpu in enumerate(("Old CPU", "Other CPU")):
        write_run(tmp_path / "exp", seed=seed, machine={"host_cpu": cpu, "capability": None})
    said = " ".join(caveats(load_results(tmp_path / "exp")))
    assert "Old CPU, 1 thread(s) (1 run)" in said


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

"""What is called better, a lead, or not shown to differ; and that each condition of a verdict matters."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis import ResultsError, comparison_text, load_results, write_report
from analysis.comparing.equal_terms import equality
from analysis.comparing.tables import compare, order_metric, with_final_validation
from analysis.comparing.verdicts import answers, families
from analysis.files import difference_decimals
from analysis.loading.results import Results

RATES = (3e-4, 3e-3, 3e-2)
CENTERS = {"transformer": 3.0, "kda": 2.8, "mla": 3.01, "mom": 3.3}
SPREAD = (-0.02, 0.0, 0.02)


@pytest.fixture(scope="module")
def base(tmp_path_factory, write_run) -> Results:
    """Four models: three rates with one seed, the middle one with three."""
    folder = tmp_path_factory.mktemp("verdicts") / "exp"
    for name, center in CENTERS.items():
        own = {
            "model": {"preset": name, "pattern": "F" * 4 if name == "transformer" else name[0].upper() * 4}
        }
        for rate in RATES:
            for seed in range(3 if rate == 3e-3 else 1):
                loss = center + SPREAD[seed] + (0 if rate == 3e-3 else 0.5)
                write_run(folder, name, seed, loss, recipe={"lr": rate}, **own)
    return load_results(folder)


@pytest.fixture
def study(base):
    """The results of `base` with its first seeds and some of its rates; changes: model -> column -> value."""

    def make(changes: dict[str, dict] | None = None, seeds: int = 3, rates: tuple = RATES) -> Results:
        runs = base.runs[(base.runs["seed"] < seeds) & base.runs["lr"].isin(rates)].copy()
        for name, columns in (changes or {}).items():
            for column, value in columns.items():
                runs.loc[(runs["name"] == name) | (name == ""), column] = value
        return replace(base, runs=runs.reset_index(drop=True))

    return make


def added(results: Results, like: str, losses: list[float], **columns) -> Results:
    """The results with more runs, equal to those of a model's middle rate but for their losses and some columns."""
    rows = results.runs[(results.runs["name"] == like) & (results.runs["lr"] == 3e-3)].head(len(losses))
    names = [f"{columns['setting']}-{seed}" for seed in range(len(losses))]
    rows = rows.assign(run=names, test_loss=losses, validation_loss=losses, **columns)
    metrics = pd.DataFrame(
        {"experiment": "exp", "run": names, "split": "validation", "step": 1, "loss": losses}
    )
    return replace(
        results,
        runs=pd.concat([results.runs, rows], ignore_index=True),
        metrics=pd.concat([results.metrics, metrics], ignore_index=True),
    )


def said(results, baseline: str | None = None) -> list[str]:
    """The sentences of the only family."""
    runs = with_final_validation(results)
    (answer,) = answers(families(runs, order_metric(runs), baseline))
    return answer.sentences


@pytest.mark.slow
def test_a_verdict_that_has_all_it_needs(study):
    found = said(study())
    assert found[0].startswith("kda is better than transformer by 0.200 nats/token (95 % interval 0.15")
    assert found[1].startswith("mom is worse than transformer by 0.300 nats/token (95 % interval 0.25")
    assert found[2].startswith("Not shown to differ from transformer: mla (differences below 0.04")
    assert found[3] == "kda is better than every other model, every pair compared."
    assert not [text for text in found if "lead" in text]


LACKING = {
    "fewer than 3 seeds": {"seeds": 2},
    "learning rates were not chosen in these runs": {"rates": RATES[1:2]},
    "a best learning rate at the edge of those tried": {"rates": RATES[1:]},
    "unequal tokens of training": {"changes": {"transformer": {"tokens": 999}}},
    "unequal texts": {"changes": {"transformer": {"data_fingerprint": "beef"}}},
    "unequal parts of the test text": {"changes": {"transformer": {"test_tokens": 1952}}},
    "equal neither in parameters nor in FLOPs": {
        "changes": {"transformer": {"parameters_non_embedding": 300_000, "flops_forward": 2e6}}
    },
    "no test split was scored": {"changes": {"": {"test_loss": math.nan}}},
}


@pytest.mark.parametrize("reason", LACKING)
def test_without_one_condition_it_is_a_lead(study, reason):
    found = said(study(**LACKING[reason]))
    assert found[0].startswith("kda is ahead of transformer by ")
    assert found[0].endswith(f"a lead, not a verdict: {reason}.")
    assert not [text for text in found if "transformer is" in text or "better than transformer" in text]
    assert not [text for text in found if "is worse than transformer" in text]


@pytest.mark.slow
def test_the_baseline_can_be_named(study):
    results = study()
    found = said(results, "kda")
    assert "transformer is worse than kda by 0.200" in " ".join(found)
    assert said(results, "kda (lr=0.003)") == found
    with pytest.raises(ResultsError, match=r"no model 'kdaa' to compare with; baseline= takes one of .*kda"):
        said(results, "kdaa")
    with pytest.raises(ResultsError, match="baseline= takes"):
        comparison_text(results, "kdaa")


def test_a_wrong_baseline_is_refused_before_anything_is_written(study, tmp_path):
    with pytest.raises(ResultsError, match="'kdaa'"):
        write_report(study(), tmp_path / "out", baseline="kdaa")
    assert not (tmp_path / "out").exists()


def test_without_a_plain_transformer_a_baseline_is_asked_for(study):
    found = said(study({"transformer": {"residual": "mhc"}}))
    assert found[0] == "kda is better than every other model, every pair compared."
    assert found[1].startswith("No baseline")
    assert "baseline=LABEL" in found[1]


def test_of_two_plain_transformers_the_one_without_options_is_the_baseline(study):
    other = {"name": "transformer qk_norm", "label": "transformer qk_norm", "setting": "q", "sweep": "q"}
    runs = added(study(rates=(3e-3,)), "transformer", [1.0, 1.1, 1.2], **other).runs
    (family,) = families(runs, "test_loss")
    assert runs.loc[runs["label"] == family.baseline, "name"].unique().tolist() == ["transformer"]
    (family,) = families(runs.replace({"name": {"transformer": "transformer value_gate"}}), "test_loss")
    assert family.baseline is None


@pytest.mark.slow
def test_the_table_has_ranks_differences_and_their_p(study):
    results = study()
    table = compare(with_final_validation(results)).set_index("label")
    best = table.loc[[f"{name} (lr=0.003)" for name in ("kda", "transformer", "mla", "mom")]]
    assert list(best["rank_best"]) == [1, 2, 2, 4]
    assert list(best["rank_worst"]) == [1, 3, 3, 4]
    assert best["difference"].iloc[0] == pytest.approx(-0.2)
    assert math.isnan(best["difference"].iloc[1])
    shown = best["difference"].abs() > best["difference_ci"]
    assert list(shown) == list(best["difference_p"] < 0.05) == [True, False, False, True]
    assert table.loc["kda (lr=0.03)", ["rank_best", "difference", "baseline"]].isna().all()
    lines = comparison_text(results).splitlines()
    assert lines[1].split()[:3] == ["1", "kda", "(lr=0.003)"]
    assert "−0.200 ± 0.0" in lines[1]
    assert [line.split()[0] for line in lines[1:-1] if line.split()[0] != "–"] == ["1", "2–3", "2–3", "4"]
    assert "baseline" in lines[2]
    assert "of differences (from transformer (lr=0.003)): all together" in lines[-1]


@pytest.mark.slow
def test_a_selection_that_was_recorded_counts(study):
    """Runs of job=compare have one rate each; the record says among how many it was selected, and where an edge is."""
    results = study(rates=RATES[1:2])
    chosen = [(name, " ".join(results.runs.loc[results.runs["name"] == name, "run"])) for name in CENTERS]

    def told(edge: str) -> list[str]:
        rows = [
            {"task": "", "model": name, "lr": lr, "chosen": lr == 3e-3, "edge": edge, "confirmed_by": runs}
            for name, runs in chosen
            for lr in RATES
        ]
        again = replace(results)
        again.__dict__["selection"] = pd.DataFrame(rows)
        return said(again)

    assert told("")[0].startswith("kda is better than transformer")
    assert "Learning rates: each model's own, chosen on validation among 3 by other runs." in told("")
    assert told("highest")[0].endswith(
        "a lead, not a verdict: a best learning rate at the edge of those tried."
    )


@pytest.mark.parametrize(("size", "told"), [(100_000, "0.5 to 1 times"), (400_000, "1 to 2 times")])
def test_a_model_far_smaller_or_larger_than_the_baseline_is_not_of_equal_size(size, told):
    other = model("kda", [2.9], parameters_non_embedding=size)
    (family,) = families(with_final_validation(pretended(model("transformer", [3.0]), other)), "test_loss")
    found = equality(family.runs, family.baseline)
    assert f"parameters beside the embedding ({told})" in found.unequal


@pytest.mark.parametrize(
    ("recorded", "seeds", "by"),
    [
        ((3, 3), 1, "by other runs;"),
        ((3, 3), 2, "by other runs (the two best with 2 seeds);"),
        ((3, None), 1, "by these runs themselves;"),
    ],
)
def test_rates_are_said_to_be_of_other_runs_where_that_was_recorded_of_every_model(recorded, seeds, by):
    names = {"transformer": recorded[0], "kda": recorded[1]}
    swept = [model(name, [3.0], lr=rate) for name in names for rate in RATES]
    (family,) = families(with_final_validation(pretended(*swept)), "test_loss")
    runs = family.runs.assign(selected_among=family.runs["name"].map(names), selected_by_seeds=seeds)
    assert f"chosen on validation among 3 {by}" in equality(runs, family.baseline).rates


@pytest.mark.parametrize(
    ("difference", "half_width", "decimals"),
    [(-0.1015, 0.0978, 3), (0.1041, 0.1039, 4), (0.5, 0.0, 4), (0.1039, 0.1041, 2)],
)
def test_rounding_never_moves_an_interval_over_zero(difference, half_width, decimals):
    assert difference_decimals(difference, half_width) == decimals
    low = round(abs(difference), decimals) - round(half_width, decimals)
    assert (low > 0.5 * 10**-decimals) == (abs(difference) > half_width)

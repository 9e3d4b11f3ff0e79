"""Headlines of papers: verdicts follow from a study's accuracies, and each headline names models that it trains."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis import load_results
from analysis.evidence import headlines
from analysis.evidence.headlines.differences import ahead, at_length, beats, level
from analysis.evidence.headlines.table import NUMBERS, PAGE, TABLE
from analysis.evidence.ledger.entries import Evidence, Missing
from analysis.evidence.ledger.rules import CONFIRMED, FAILS, HOLDS, INCONCLUSIVE, OPEN, REFUTED, Lack, judge
from analysis.loading.results import Results

pytestmark = pytest.mark.xdist_group("published headlines")  # or every test process judges them
ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "results" / "published"
KNOWN = {one.config: one for one in headlines.known_headlines()}
LONG = pytest.mark.long
WITH, WITHOUT = "kda_pure neg_eigval", "kda_pure"


@pytest.fixture(scope="module")
def parity() -> Results:
    return load_results(PUBLISHED / "papers_parity")


class Fixed(Evidence):
    """Evidence of one study, whatever is asked for."""

    def __init__(self, study: Results) -> None:
        super().__init__([], [])
        self.fixed = study

    def study(self, name: str, command: str) -> Results:
        return self.fixed


def with_accuracies(study: Results, by_model: dict[str, tuple[float, ...]]) -> Results:
    """The study with these accuracies, a seed each, of its models."""
    runs = study.runs.copy()
    for model, values in by_model.items():
        of_model = runs.index[runs["name"] == f"{model} parity"]
        runs.loc[of_model, "test_accuracy"] = pd.Series([*values, *[float("nan")] * 3][:3], index=of_model)
    return replace(study, runs=runs)


@pytest.mark.parametrize(
    ("ahead", "behind", "verdict", "lacks"),
    [
        ((0.99, 0.98, 1.0), (0.50, 0.52, 0.51), CONFIRMED, ""),
        ((0.50, 0.52, 0.51), (0.99, 0.98, 1.0), REFUTED, ""),
        pytest.param(
            (0.93, 0.95, 0.94), (0.96, 0.955, 0.96), REFUTED, "", marks=LONG
        ),  # surely not a twentieth ahead
        ((0.99, 0.98, 1.0), (0.80, 0.95, 0.90), INCONCLUSIVE, ""),  # an interval on both sides of a twentieth
        pytest.param(
            (0.9, 0.91, 0.92), (0.5, 0.52, 0.51), INCONCLUSIVE, "no model has 95% of the answers", marks=LONG
        ),
        ((0.99, 0.98, 1.0), (0.97, 0.98, 0.99), INCONCLUSIVE, "both have 95% of the answers right"),
        pytest.param((0.99, 0.98), (0.50, 0.52), INCONCLUSIVE, "fewer than 3 seeds", marks=LONG),
    ],
)
def test_a_verdict_follows_from_accuracies_with_their_interval(parity, ahead, behind, verdict, lacks):
    study = with_accuracies(parity, {WITH: ahead, WITHOUT: behind})
    entry = judge(KNOWN["parity"], Fixed(study))
    assert entry.verdict == verdict
    assert entry.checks[0].value == pytest.approx(sum(ahead) / len(ahead) - sum(behind) / len(behind))
    assert entry.checks[0].seeds == len(ahead)
    assert lacks in " ".join(lack.why for lack in entry.lacks)
    assert bool(entry.lacks) is bool(lacks)


@pytest.mark.parametrize(
    ("one", "other", "outcome"),
    [
        ((0.99, 0.98, 1.0), (0.97, 0.98, 0.98), HOLDS),
        ((0.99, 0.98, 1.0), (0.50, 0.52, 0.51), FAILS),
        ((0.99, 0.98, 1.0), (0.70, 0.90, 0.99), OPEN),
    ],
)
def test_level_is_a_gap_at_most(parity, one, other, outcome):
    study = with_accuracies(parity, {WITH: one, WITHOUT: other})
    (check,) = level(study, WITH, WITHOUT)
    assert check.outcome == outcome


def test_a_difference_has_as_many_seeds_as_the_model_with_fewer(parity):
    study = with_accuracies(parity, {WITH: (0.99, 0.98, 1.0), WITHOUT: (0.50, 0.52)})
    check, lack = ahead(study, WITH, WITHOUT)
    assert (check.seeds, check.needed) == (2, None)
    assert "fewer than 3 seeds" in lack.why


def test_accuracies_of_longer_sequences_take_the_place_of_those_of_the_trained_length(parity):
    """What counts is whether the task was learned at the trained length."""
    right = parity.runs["name"].map({f"{WITH} parity": 40, f"{WITHOUT} parity": 10}) + parity.runs["seed"]
    rows = parity.runs[["run"]].assign(length=48, answers=100, right=right)
    study = replace(parity, tables={"lengths": rows})
    far = at_length(study, 48)
    (check,) = ahead(far, WITH, WITHOUT, trained=study)
    assert (check.value, check.outcome) == (pytest.approx(0.3), HOLDS)
    untrained = list(ahead(far, WITH, WITHOUT))
    assert [isinstance(part, Lack) for part in untrained] == [False, True]
    with pytest.raises(Missing, match="no run was scored on sequences of 64 tokens"):
        at_length(study, 64)


def test_a_rate_at_the_edge_makes_no_verdict(tmp_path: Path):
    shutil.copytree(PUBLISHED / "papers_parity", tmp_path / "papers_parity")
    record = tmp_path / "papers_parity" / "selection.csv"
    rows = pd.read_csv(record)
    rows.assign(edge=rows["chosen"].map({True: "highest", False: ""})).to_csv(record, index=False)
    entry = judge(KNOWN["parity"], Evidence([], [tmp_path]))
    assert (entry.verdict, entry.checks[0].needed) == (INCONCLUSIVE, None)
    assert "at the edge of those tried" in entry.lacks[0].why


def test_a_model_that_was_not_trained_is_named_with_those_that_were(parity):
    entry = judge(replace(KNOWN["parity"], judge=beats("parity", WITH, "kda")), Fixed(parity))
    assert entry.verdict == INCONCLUSIVE
    assert "no model 'kda' in the study, only kda_pure, kda_pure neg_eigval" in entry.lacks[0].why


def test_each_headline_has_a_configuration_and_each_configuration_a_headline():
    files = {
        path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "headline").glob("*.yaml")
    }
    assert {one.config for one in headlines.known_headlines()} == set(files)
    assert {config["name"] for config in files.values()} == {f"papers_{name}" for name in files}
    for one in headlines.known_headlines():
        assert all((one.statement, one.documents, one.quoted, one.rule, one.differs)), one.number
        steps = f"{files[one.config]['trainer']['max_steps']:,} steps"
        assert steps in one.differs, (
            f"headline {one.number} tells other steps than conf/headline/{one.config}.yaml"
        )


def test_nothing_run_is_told_with_the_command(tmp_path: Path):
    found = headlines.judge_all([tmp_path])
    assert {one.verdict for one in found} == {"not run"}
    lines = "\n".join(headlines.lines(found))
    assert "python run.py +experiment=papers headline=parity" in lines
    assert lines.endswith(f"{len(found)} headlines: {len(found)} not run")


@pytest.fixture(scope="module")
def found() -> list[headlines.Judged]:
    return headlines.judge_all([PUBLISHED])


def test_the_published_table_and_page_are_made_of_the_published_studies(found, tmp_path: Path):
    headlines.write(found, tmp_path)
    for name in (TABLE, NUMBERS, PAGE):
        text = (PUBLISHED / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == text, f"{name}: python run.py job=headlines"


def test_studies_that_were_run_are_judged_and_tell_their_cost(found):
    run = [one for one in found if one.run]
    assert len(run) >= 2
    for one in run:
        assert one.entry.headline is not None, one.headline.config
        assert one.core_minutes > 0
        assert not [lack for lack in one.entry.lacks if "failed" in lack.why or "no model '" in lack.why]
    assert {one.headline.config for one in run} == {
        path.name.removeprefix("papers_") for path in PUBLISHED.glob("papers_*")
    }

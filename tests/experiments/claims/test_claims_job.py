"""job=claims: numbers measured again lie within their published intervals; what is asked for wrongly is refused."""

import shlex
import shutil

import pandas as pd
import pytest
from support.program import ROOT, Lab

from analysis.evidence import ledger
from experiments.evidence import measure_claims

PUBLISHED = ROOT / "results" / "published"
CHEAP = [1, 2, 4, 5, 6, 7, 8, 10, 15, 17, 18, 19, 20, 21, 22, 24, 25, 26]


def again(claims: list[int]) -> list[str]:
    """What differs from the published ledger, times left out; no claims given: all of them."""
    asked = ledger.chosen(claims)
    evidence = ledger.Evidence(measure_claims([claim.number for claim in asked], progress=False), [PUBLISHED])
    entries = [ledger.judge(claim, evidence) for claim in asked]
    return ledger.against_published(entries, [PUBLISHED])


@pytest.mark.slow
def test_cheap_numbers_lie_within_their_published_intervals():
    found = pd.DataFrame(measure_claims(CHEAP, progress=False))
    published = pd.read_csv(PUBLISHED / "claim_numbers.csv")
    published = published[published["source"] == "measured here"]
    assert ledger.page.disagreements(found, published) == []
    assert set(found["claim"]) == set(CHEAP)


@pytest.mark.long
def test_all_numbers_and_tables_lie_within_their_published_intervals():
    assert again([]) == []


@pytest.mark.slow
def test_chosen_claims_are_printed_and_compared_and_nothing_is_written(lab: Lab):
    outcome = lab.done("job=claims", "claims=[24,13]")
    assert (
        "parameters, hypergraph: 138,152,448 parameters (exact)  needed = 138,152,448: holds" in outcome.out
    )
    assert "2 claims: 1 confirmed, 1 needs a GPU" in outcome.out
    assert not lab.results.exists()


@pytest.mark.slow
def test_a_number_outside_its_published_interval_fails_the_command(lab: Lab):
    own = lab.results / "published"
    own.mkdir(parents=True)
    table = pd.read_csv(PUBLISHED / "claim_numbers.csv")
    other = table["name"] == "parameters, hypergraph"
    table.loc[other, ["low", "high"]] = 1.0
    table.to_csv(own / "claim_numbers.csv", index=False)
    outcome = lab.here("job=claims", "claims=[24]")
    assert outcome.status == 1
    assert "claim 24, parameters, hypergraph: 1.38152e+08 lies outside 1 to 1" in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["claims=[30]"], "no claim 30; give numbers from 1 to 29"),
        (["runs=nowhere"], "nowhere does not exist"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_measured(lab: Lab, words, said):
    outcome = lab.here("job=claims", *words)
    assert (outcome.status, said in outcome.err) == (2, True), outcome.err
    assert not lab.results.exists()


@pytest.mark.slow
def test_a_users_runs_take_the_place_of_a_published_study(lab: Lab, tmp_path):
    """The study of sinks, of two runs with a sink and without: the claim is judged, and by two seeds left open."""
    own = tmp_path / "mine"
    shutil.copytree(PUBLISHED / "sinks", own / "sinks")
    measures = pd.read_parquet(own / "sinks" / "measures.parquet")
    plain = (measures["measure"] == "first_token_mass") & (measures["label"] == "transformer")
    measures.loc[plain, "value"] = 0.47
    measures.to_parquet(own / "sinks" / "measures.parquet")
    outcome = lab.done("job=claims", "claims=[10]", f"runs={own}")
    assert "1 claim: 1 inconclusive" in outcome.out
    assert "needed ≤ 0.05: open" in outcome.out


@pytest.mark.long
def test_the_whole_ledger_is_written_to_the_results(lab: Lab):
    lab.done("job=claims")
    names = {path.name for path in (lab.results / "published").iterdir()}
    assert names == {"claims.csv", "claim_numbers.csv", "claims.md", "claims.html"}
    assert len(pd.read_csv(lab.results / "published" / "claims.csv")) == 29


def commands() -> list[str]:
    table = pd.read_csv(PUBLISHED / "claims.csv").fillna("")
    found = {
        each for cell in [*table["missing"], *table["behind"], *table["command"]] for each in cell.split("; ")
    }
    return sorted(each for each in found if each.startswith("python run.py"))


def test_every_command_of_the_ledger_names_a_job_or_an_experiment():
    jobs = {path.stem for path in (ROOT / "experiments" / "jobs").glob("*.py")} | {
        "report",
        "publish",
        "claims",
    }
    experiments = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    for command in commands():
        key, name = shlex.split(command)[2].split("=")
        assert name in {"job": jobs, "+experiment": experiments}[key], command


@pytest.mark.long
def test_every_command_of_the_ledger_composes(lab: Lab):
    lab.arguments = lambda *words: list(words)
    for command in commands():
        words = shlex.split(command)[2:]
        assert lab.compose(*words), command

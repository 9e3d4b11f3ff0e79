"""The published ledger: its verdicts follow from its numbers, and turn with a wrong one; its commands exist."""

import math
import shlex
from pathlib import Path

import pandas as pd
import pytest

from analysis.evidence import ledger
from analysis.evidence.ledger.page import markdown, number_rows
from analysis.evidence.ledger.rules import CONFIRMED, FAILS, HOLDS, INCONCLUSIVE, REFUTED, SHOWN, Needed

pytestmark = pytest.mark.xdist_group("published claims")  # or every test process judges them
ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "results" / "published"
CLAIMS = ledger.known_claims()
MEASURED = "measured here"


@pytest.fixture(scope="module")
def numbers() -> pd.DataFrame:
    return pd.read_csv(PUBLISHED / "claim_numbers.csv", keep_default_na=False, na_values=[""]).fillna(
        {"unit": "", "machine": "", "commit": "", "source": ""}
    )


@pytest.fixture(scope="module")
def measured(numbers) -> list[dict]:
    return numbers[numbers["source"] == MEASURED].to_dict("records")


@pytest.fixture(scope="module")
def entries(measured) -> dict[int, ledger.Entry]:
    evidence = ledger.Evidence(measured, [PUBLISHED])
    return {number: ledger.judge(claim, evidence) for number, claim in CLAIMS.items()}


@pytest.mark.slow
def test_there_are_29_claims_and_their_numbers_and_tables_give_the_published_verdicts(entries):
    published = pd.read_csv(PUBLISHED / "claims.csv").set_index("claim")["verdict"]
    assert list(CLAIMS) == list(published.index) == list(range(1, 30))
    verdicts = {number: entry.verdict for number, entry in entries.items()}
    assert verdicts == published.to_dict(), "a table or a rule changed: python run.py job=claims"
    decided = [verdict for verdict in published if verdict in (CONFIRMED, REFUTED)]
    assert len(decided) >= 15


def test_every_number_of_a_claim_is_the_published_one(entries):
    """Those that are made of published tables and of formulas too, with unit, bounds and outcome."""
    published = pd.read_csv(PUBLISHED / "claim_numbers.csv")
    made = number_rows(list(entries.values())).reset_index(drop=True)
    assert list(made.columns) == list(published.columns)
    for column in published.columns:
        if pd.api.types.is_float_dtype(published[column]):
            own, there = (x[column].astype("float64").tolist() for x in (made, published))
            assert own == pytest.approx(there, rel=1e-6, nan_ok=True), column
        else:
            own, there = (x[column].astype(object).fillna("").tolist() for x in (made, published))
            assert own == there, column


def test_nothing_failed_and_every_row_says_what_was_measured(entries):
    assert not [lack for entry in entries.values() for lack in entry.lacks if "failed" in lack.why]
    for entry in entries.values():
        assert entry.headline is not None
        assert all((entry.claim.statement, entry.claim.quoted, entry.claim.rule, entry.claim.documents))
        assert entry.verdict == INCONCLUSIVE or entry.lacks or entry.headline.outcome in (HOLDS, FAILS)


def test_the_published_page_is_made_of_these_numbers(entries):
    assert (PUBLISHED / "claims.md").read_text(encoding="utf-8") == markdown(list(entries.values()))


def test_what_the_documents_formulas_say_themselves_stands_beside_the_verdict(entries):
    assert {number for number, entry in entries.items() if entry.remarks} >= {
        *(2, 4, 7, 8, 10, 11, 13, 15, 25, 26),
    }


@pytest.mark.parametrize(
    ("number", "chosen"),
    [
        (2, ["‖QᵀQ − I‖ at", "smallest even K"]),  # the document gives no number of terms
        (4, ["Amax"]),  # its ρ is a singular value
        (6, ["whole streams", "relative error"]),
        (9, ["time of a training step"]),  # on a CPU, at small widths
        (11, ["FLOP ceiling at"]),  # with k_max keys; it lets a query read fewer
        (12, ["serving", "training"]),  # it names neither the memory nor the attention that it compares with
        (13, ["bytes that ours leave out", "saved by the document's formula: indexer"]),
        (14, ["time of a training step", "FLOPs of a training step", "bytes that", "bytes kept"]),
        (15, ["ZeRO-3 with the streams"]),  # tokens that a GPU holds
        (17, ["cache saved at reference size"]),
        (23, ["transformer's time"]),
        (27, ["test loss of hypergraph less"]),
    ],
)
def test_what_we_chose_ourselves_decides_nothing(entries, number, chosen):
    """Numbers of terms, sizes, lengths and baselines of ours, where the claim is not for all of them."""
    for start in chosen:
        found = [check for check in entries[number].checks if check.name.startswith(start)]
        assert found, start
        assert {check.outcome for check in found} == {SHOWN}, start


def judged_again(number: int, changed: dict[str, float], measured: list[dict]) -> str:
    """The verdict with other measured numbers by name; without any study or table, which decide nothing here."""
    rows = [
        {**row, **dict.fromkeys(("value", "low", "high"), changed[row["name"]])}
        if row["name"] in changed
        else row
        for row in measured
        if row["claim"] == number
    ]
    return ledger.judge(CLAIMS[number], ledger.Evidence(rows, [PUBLISHED / "nothing"])).verdict


def test_any_wrong_number_turns_the_verdict(measured, entries):
    """Every number that is measured here and judged, one at a time, beyond what is needed."""
    for number, entry in entries.items():
        for check in entry.checks:
            if check.needed is not None and check.source == MEASURED:
                high = check.needed.high
                wrong = (
                    2 * abs(high) + 1 if math.isfinite(high) else check.needed.low - abs(check.needed.low) - 1
                )
                assert judged_again(number, {check.name: wrong}, measured) == REFUTED, (number, check.name)


def inside(needed: Needed) -> float:
    """A number that a condition allows, a little away from its limit."""
    low, high = needed.low, needed.high
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2
    return low + 1e-3 * abs(low) if math.isfinite(low) else high - 1e-3 * abs(high)


def test_right_numbers_turn_a_refuted_claim(measured, entries):
    """With all failing numbers where they are needed, nothing that was measured here refutes any more."""
    for number, entry in entries.items():
        failing = [each for each in entry.checks if each.outcome == FAILS and each.source == MEASURED]
        right = {each.name: inside(each.needed) for each in failing}
        assert not right or judged_again(number, right, measured) != REFUTED, number


def test_every_test_behind_a_claim_exists_and_every_command_is_of_the_program():
    for claim in CLAIMS.values():
        for command in claim.behind.split("; "):
            words = shlex.split(command)
            if words[0] == "pytest":
                assert all((ROOT / word).exists() for word in words[1:]), command
            else:
                assert command.startswith(("python run.py job=", "python run.py +experiment=")), command


def test_all_claims_are_chosen_where_none_is_named():
    assert [claim.number for claim in ledger.chosen([])] == sorted(CLAIMS)
    assert [claim.number for claim in ledger.chosen([7, 3])] == [3, 7]


def test_an_unknown_claim_is_refused():
    with pytest.raises(ledger.entries.ResultsError, match="no claim 30; give numbers from 1 to 29"):
        ledger.chosen([1, 30])

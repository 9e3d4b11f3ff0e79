"""How verdicts follow from numbers, intervals and what a claim needs; and what odd evidence does."""

import dataclasses
import math

import pandas as pd
import pytest

from analysis import load_results
from analysis.evidence import ledger
from analysis.evidence.ledger.entries import Evidence, Missing, seeds_check
from analysis.evidence.ledger.page import counted, disagreements, html, markdown, number_rows, rows
from analysis.evidence.ledger.rules import (
    CONFIRMED,
    FAILS,
    GPU,
    HOLDS,
    INCONCLUSIVE,
    OPEN,
    REFUTED,
    SHOWN,
    TRAINING,
    VERDICTS,
    Check,
    Lack,
    Needed,
    Remark,
    about,
    at_least,
    at_most,
    verdict,
)
from analysis.loading.results import Results


def check(value, low, high, needed=None, **more) -> Check:
    return Check("a number", value, low, high, needed=needed, **more)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (check(2, 1, 3), SHOWN),
        (check(2, 1, 3, at_most(3)), HOLDS),
        (check(2, 1, 3, at_most(2.5)), OPEN),
        (check(2, 1, 3, at_most(0.5)), FAILS),
        (check(2, 1, 3, at_least(1)), HOLDS),
        (check(2, 1, 3, at_least(2)), OPEN),
        (check(2, 1, 3, at_least(3.1)), FAILS),
        (check(2, 1, 3, Needed(0, 1.5)), OPEN),
        (check(2, 2, 2, about(2.1, 0.1)), HOLDS),
        (check(-2, -2, -2, about(-2.1, 0.1)), HOLDS),
        (check(2, 2, 2, about(0.0)), FAILS),
        (check(1e-15, 0, 1e-12, at_most(1e-12)), HOLDS),
        (check(0.3, 0, 1e-12, at_most(1e-12)), FAILS),  # above its own bound: the value counts alone
        (check(math.nan, math.nan, math.nan, at_most(1)), OPEN),
        (check(2, 1, 3, at_most(3), seeds=3), HOLDS),
        (check(2, 1, 3, at_most(3), seeds=2), OPEN),
        (check(2, 1, 3, at_most(0.5), seeds=1), OPEN),
    ],
)
def test_a_number_holds_or_fails_with_its_whole_interval_and_enough_seeds(number, outcome):
    assert number.outcome == outcome


HELD, FAILED = check(1, 1, 1, at_most(1)), check(2, 2, 2, at_most(1))
UNCLEAR = check(1, 0, 2, at_most(1))


@pytest.mark.parametrize(
    ("checks", "lacks", "expected"),
    [
        ([HELD], [], CONFIRMED),
        ([HELD, check(9, 9, 9)], [], CONFIRMED),
        ([HELD, UNCLEAR], [], INCONCLUSIVE),
        ([HELD, FAILED, UNCLEAR], [Lack(GPU, "")], REFUTED),
        ([HELD], [Lack(TRAINING, ""), Lack(GPU, "")], GPU),
        ([HELD, UNCLEAR], [Lack(TRAINING, "")], TRAINING),
        ([HELD], [Lack(INCONCLUSIVE, "")], INCONCLUSIVE),
        ([check(1, 1, 1)], [], INCONCLUSIVE),
        ([], [], INCONCLUSIVE),
    ],
)
def test_a_verdict_is_that_of_the_worst_part(checks, lacks, expected):
    assert verdict(checks, lacks) == expected


@pytest.mark.parametrize(
    ("needed", "text"),
    [
        (at_most(1e-12), "≤ 1e-12"),
        (at_least(1.05), "≥ 1.05"),
        (Needed(0.6, 0.7), "0.6 to 0.7"),
        (about(137_710_080, 0), "= 137,710,080"),
    ],
)
def test_a_condition_is_written_as_it_is(needed, text):
    assert str(needed) == text


RUNS = {"experiment": "mine", "cpu": ["A", "A"], "gpu": [None, "B"], "commit": ["0123456789abcd", None]}
STUDY = Results(pd.DataFrame(RUNS), pd.DataFrame(), [], pd.DataFrame())


def test_seeds_make_an_interval_and_one_seed_none():
    three = seeds_check("x", pd.Series([1.0, 2.0, 3.0]), at_most(10), STUDY)
    assert (three.value, three.seeds) == (2.0, 3)
    assert three.high - three.value == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert (three.source, three.machine, three.commit) == ("study mine", "A and B", "0123456789ab")
    one = seeds_check("x", pd.Series([1.0]), at_most(10), STUDY)
    assert (one.low, one.high, one.outcome) == (1.0, 1.0, OPEN)


ROW = {"low": 0.0, "high": 1.0, "unit": "", "timed": False, "machine": "m", "load": 0.1, "commit": "c"}


def evidence(tmp_path, *names: str) -> Evidence:
    measured = [{**ROW, "claim": 1, "name": name, "value": 0.5} for name in names]
    return Evidence(measured, [tmp_path])


def claim(judge) -> ledger.Claim:
    return ledger.Claim(1, "It is <b>so</b> | so", "a document", "1", "at most 1", judge, "pytest tests")


def test_numbers_meet_the_condition_whose_beginning_they_have(tmp_path):
    found = list(evidence(tmp_path, "error, fp32", "other").checks(1, {"error": at_most(1.0)}))
    assert [each.outcome for each in found] == [HOLDS, SHOWN]
    with pytest.raises(Missing, match="no number 'err0r' was measured") as missing:
        list(evidence(tmp_path, "error").checks(1, {"err0r": at_most(1.0)}))
    assert missing.value.command == "python run.py job=claims 'claims=[1]'"


def broken(found):
    yield HELD
    found.table("steps.csv", "python run.py job=bench")["ratio"].sum()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there"),
        (b"", "cannot be read"),
        (b"\x80\x81", "cannot be read"),
        (b"a,b\n1,2\n", "KeyError"),
    ],
)
def test_a_missing_or_damaged_table_leaves_its_part_open_and_ends_nothing(tmp_path, content, said):
    if content is not None:
        (tmp_path / "steps.csv").write_bytes(content)
    entry = ledger.judge(claim(broken), evidence(tmp_path))
    assert (entry.verdict, entry.checks) == (INCONCLUSIVE, (HELD,))
    assert said in entry.lacks[0].why


def test_a_table_that_is_a_link_out_of_its_folder_is_not_read(tmp_path):
    outside = tmp_path / "outside.csv"
    outside.write_text("ratio\n1\n")
    inside = tmp_path / "published"
    inside.mkdir()
    (inside / "steps.csv").symlink_to(outside)
    assert ledger.judge(claim(broken), Evidence([], [inside])).lacks


def test_of_several_places_the_first_that_has_a_table_or_a_study_counts(tmp_path, write_run):
    """A ledger of one's own stands before the published one, and what it lacks is read from there."""
    places = [tmp_path / name for name in ("empty", "own", "published")]
    for place, ratio in zip(places[1:], (2.0, 3.0), strict=True):
        write_run(place / "sinks", loss=ratio)
        (place / "steps.csv").write_text(f"ratio\n{ratio}\n")
    (places[2] / "other.csv").write_text("ratio\n4\n")
    found = Evidence([], places)
    assert found.table("steps.csv", "")["ratio"].tolist() == [2.0]
    assert found.table("other.csv", "")["ratio"].tolist() == [4]
    assert found.study("sinks", "").runs["test_loss"].tolist() == [2.0]


def test_a_study_of_a_users_runs_has_no_rows_of_other_experiments(tmp_path, write_run):
    """Also of tables that were read before, of all runs together."""
    for name in ("sinks", "rates"):
        run = write_run(tmp_path / name, name)
        (run / "documents.csv").write_text("split,document,tokens,nats\ntest,0,10,1.5\n")
    runs = load_results(tmp_path)
    assert set(runs.table("documents")["experiment"]) == {"sinks", "rates"}
    study = Evidence([], [tmp_path], runs).study("sinks", "")
    for frame in (study.runs, study.metrics, study.table("documents")):
        assert set(frame["experiment"]) == {"sinks"}


def test_a_study_that_cannot_be_read_names_the_command_that_makes_it(tmp_path):
    def judge(found):
        found.study("sinks", "python run.py +experiment=sinks")
        yield HELD

    (lack,) = ledger.judge(claim(judge), evidence(tmp_path)).lacks
    assert lack.command == "python run.py +experiment=sinks"


def entry(**changes) -> ledger.Entry:
    found = ledger.judge(
        claim(lambda _: iter([HELD, UNCLEAR, Remark("it does not", FAILED)])), Evidence([], [])
    )
    return dataclasses.replace(found, **changes)


def test_the_tables_show_the_number_that_decided_and_count_the_parts():
    (row,) = rows([entry()]).to_dict("records")
    assert (row["verdict"], row["measured"], row["high"], row["parts"]) == (
        INCONCLUSIVE,
        "a number",
        2,
        "1 of 2 hold",
    )
    assert row["remark"] == "it does not."
    assert list(number_rows([entry()])["outcome"]) == [HOLDS, OPEN, FAILS]
    (row,) = rows([entry(checks=(HELD, UNCLEAR, FAILED))]).to_dict("records")
    assert (row["verdict"], row["value"]) == (REFUTED, 2)


def test_a_claim_without_a_needed_number_or_without_any_has_a_row_too():
    (shown,) = rows([entry(checks=(check(1, 1, 1, None),))]).to_dict("records")
    (none,) = rows([entry(checks=())]).to_dict("records")
    assert (shown["measured"], shown["needed"], shown["parts"]) == ("a number", "", "none judged")
    assert (none["measured"], none["needed"]) == ("", "")


def test_a_time_beside_other_work_says_so():
    timed = check(1, 1, 1, at_most(1), timed=True, load=3.2, machine="a machine")
    (row,) = rows([entry(checks=(timed,))]).to_dict("records")
    assert row["machine"] == "a machine; beside other work (load 3.2)"
    (row,) = rows([entry(checks=(dataclasses.replace(timed, timed=False),))]).to_dict("records")
    assert row["machine"] == "a machine"


def test_pages_escape_what_files_say_and_count_verdicts():
    assert counted([entry(), entry()]) == "2 claims: 2 inconclusive"
    page = html([entry()])
    assert "It is &lt;b&gt;so&lt;/b&gt;" in page
    assert "<b>so" not in page
    assert "it does not" in page
    assert "http" not in page.replace("http-equiv", "")
    assert r"It is \<b\>so\</b\> \| so" in markdown([entry()])


def test_a_repeated_number_outside_its_interval_is_named_and_a_time_is_not():
    published = number_rows([entry(checks=(HELD, dataclasses.replace(UNCLEAR, name="b", timed=True)))])
    published = published.drop_duplicates("name")
    assert disagreements(published, published) == []
    again = published.assign(value=5.0)
    assert disagreements(again, published) == ["claim 1, a number: 5 lies outside 1 to 1"]
    assert disagreements(published.iloc[:1], published) == ["claim 1, b: only in the published ledger"]
    assert disagreements(published, published.iloc[:1]) == ["claim 1, b: only now"]


def test_numbers_are_compared_with_the_first_published_ledger(tmp_path):
    places = [tmp_path / name for name in ("empty", "own", "published")]
    for place, value in zip(places[1:], (1.0, 7.0), strict=True):
        place.mkdir()
        held = Check("a number", value, value, value, needed=at_most(9.0))
        number_rows([entry(checks=(held,), remarks=())]).to_csv(place / "claim_numbers.csv", index=False)
    again = [entry(checks=(HELD,), remarks=())]
    assert ledger.against_published(again, places) == []
    assert ledger.against_published(again, places[2:]) == ["claim 1, a number: 1 lies outside 7 to 7"]
    with pytest.raises(ledger.entries.ResultsError, match="job=claims alone writes it"):
        ledger.against_published(again, places[:1])
    nothing = [entry(checks=(), remarks=())]
    assert ledger.against_published(nothing, places) == ["claim 1, a number: only in the published ledger"]


def test_a_repeated_time_may_be_another_but_not_turn_the_verdict():
    needed = at_least(1.0)
    published = number_rows([entry(checks=(Check("a ratio", 4.2, 3.6, 4.4, needed=needed, timed=True),))])
    assert published["outcome"].iloc[0] == "holds"
    for value, turned in ((5.5, False), (0.9, True)):
        check = Check("a ratio", value, value - 0.1, value + 0.1, needed=needed, timed=True)
        said = disagreements(number_rows([entry(checks=(check,))]), published)
        assert said == (["claim 1, a ratio: ≥ 1 open now and holds where it was published"] if turned else [])


def test_verdicts_are_the_five_that_there_are():
    assert {CONFIRMED, REFUTED, INCONCLUSIVE, GPU, TRAINING} == set(VERDICTS)

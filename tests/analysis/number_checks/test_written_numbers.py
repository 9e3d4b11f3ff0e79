"""Numbers in a text against the tables that they name: the pages hold, and what does not hold is told."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.evidence.number_checks.__main__ import main
from analysis.evidence.number_checks.annotations import marks, table_rows
from analysis.evidence.number_checks.check import Outcome, check
from analysis.evidence.number_checks.published_tables import Tables

ROOT = Path(__file__).resolve().parents[3]

ROWS = pd.DataFrame(
    {
        "label": ["a", "a", "b", "b c"],
        "layer": pd.array([0, 1, 0, None], "Int64"),
        "loss": [5.1234, 5.2, 4.75, 6.0],
        "share": [0.0365, 0.025, 0.012, 0.4],
        "steps": [1000, 16640, 250, 1],
        "part": ["mixer", "", None, ""],  # empty either way: of no part
    }
)


@pytest.fixture
def judge(tmp_path):
    """Writes text and mark into a folder with one published table, and checks them."""
    place = tmp_path / "results" / "published" / "study"
    place.mkdir(parents=True)
    ROWS.to_parquet(place / "measures.parquet")
    ROWS.to_csv(place / "rows.csv", index=False)

    def judged(text: str, *lines: str, head: str = "study/measures") -> Outcome:
        path = tmp_path / "page.md"
        path.write_text(
            "\n".join(["# Page", "", text, f"<!-- check {head}", *lines, "-->", ""]), encoding="utf-8"
        )
        return check(path, Tables(tmp_path))

    return judged


def only(outcome: Outcome) -> str:
    assert len(outcome.problems) == 1, outcome.problems
    assert "\n" not in outcome.problems[0]
    return outcome.problems[0]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(ROOT)


TEXTS = ("README.md", "docs/*.md", "docs/blocks/*.md", "results/README.md", "results/published/*/README.md")
MARKED = [
    path.relative_to(ROOT).as_posix()
    for texts in TEXTS
    for path in sorted(ROOT.glob(texts))
    if "<!-- check " in path.read_text(encoding="utf-8")
]


def test_pages_and_published_studies_have_marks():
    assert {"docs/architectures.md", "docs/probes.md", "docs/decisions.md", "results/README.md"} <= {*MARKED}
    assert len([name for name in MARKED if name.startswith("docs/blocks/")]) > 5
    assert len([name for name in MARKED if name.startswith("results/published/")]) > 15


@pytest.mark.long  # make check-numbers says it too
@pytest.mark.parametrize("name", MARKED)
def test_the_numbers_of_pages_are_those_of_their_tables(tables, name):
    outcome = check(ROOT / name, tables)
    assert outcome.problems == []
    assert outcome.numbers + outcome.statements > 0


EDITS = {
    "results/README.md": [
        ("`delta_rule` 15.2 times as fast", "`delta_rule` 15.4 times as fast"),  # in a sentence
        ("| 0.98 / 1.03 / 1.06 |", "| 0.98 / 1.03 / 1.09 |"),  # in a table
        ("nsa by 0.0004,", "nsa by 0.0005,"),
    ],
    "results/published/residuals/README.md": [
        ("| 49 | 84 |", "| 94 | 84 |"),
        ("| 4.0e9 |", "| 4.1e9 |"),
        ("`ohc` have 24.5 % more", "`ohc` have 25.4 % more"),
    ],
    "results/published/sinks/README.md": [("at 16,640 parameters more", "at 16,460 parameters more")],
    "results/published/routing/README.md": [("probability 0.24 to 0.29 of", "probability 0.24 to 0.30 of")],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_edited_numbers_of_a_page_are_caught_each_in_its_line(tables, tmp_path, name):
    text = (ROOT / name).read_text(encoding="utf-8")
    edited, lines = text, []
    for old, new in EDITS[name]:
        assert text.count(old) == 1
        lines.append(text[: text.index(old)].count("\n") + 1)
        edited = edited.replace(old, new)
    (tmp_path / "page.md").write_text(edited, encoding="utf-8")
    problems = check(tmp_path / "page.md", tables).problems
    assert sorted(int(problem.split(":")[1]) for problem in problems) == sorted(lines)
    assert all(": written " in problem for problem in problems)


@pytest.mark.parametrize(
    ("written", "expression"),
    [
        ("5.123", "only loss label=a layer=0"),
        ("5.1", "only loss label=a layer=0"),
        ("3.65 %", "max share label!=b layer=0"),
        ("16,640", "max steps"),
        ("1.7e4", "max steps"),
        ("5.3039", "mean of mean loss per label"),
        ("5.2", "max of min loss label=a per layer"),
        ("4", "count loss"),
        ("3", "nunique label"),
        ("6.0", "only loss layer="),
        ("3", "count loss part="),
        ("1", "count loss part!="),
        ("3", "count loss layer!="),
        ("6.00", 'only loss "label=b c"'),
        ("5.20", "max loss label=a|b"),
        ("1.01", "only loss label=a layer=1 / only loss label=a layer=0"),
        ("0.08", "only loss label=a layer=1 - only loss label=a layer=0"),
        ("25", "only share label=a layer>=1 * 1000"),
        ("0.054", "std loss label=a"),
    ],
)
def test_a_number_that_holds(judge, written, expression):
    quote = written.replace(written.split()[0], "#")
    outcome = judge(f"It is {written}, we say.", f"It is {quote}, we | {expression}")
    assert (outcome.numbers, outcome.problems) == (1, [])


@pytest.mark.parametrize("written", ["5.124", "5.122", "5.2", "51.23 %", "−5.123"])
def test_a_number_that_does_not_hold_is_told_with_line_and_both_numbers(judge, written):
    quote = "#" + written[len(written.split()[0]) :]
    said = only(
        judge(f"First line.\nIt is\n{written}, we say.", f"It is {quote}, we | only loss label=a layer=0")
    )
    value = 512.34 if "%" in written else 5.1234
    assert said.startswith(f"page.md:5: written {written}, which should be = {value:.6g} (study/measures: ")


def test_half_a_unit_of_the_last_digit_is_the_limit(judge):
    for written, holds in (
        ("0.04", True),
        ("0.036", True),
        ("0.037", True),
        ("0.038", False),
        ("0.0366", False),
    ):
        outcome = judge(f"It is {written}.", "It is #. | only share label=a layer=0")
        assert (outcome.problems == []) == holds, written


def test_a_bound_and_words(judge):
    bounds = ("at most # | >= max loss", "at most # | > min loss")
    assert judge("It is at most 6.5 nats.", *bounds).problems == []
    assert "written 6.5, which should be < 4.75" in only(judge("at most 6.5", "at most # | < min loss"))
    outcome = judge("b ends below a.", "b ends below a | max loss label=b < min loss label=a")
    assert (outcome.statements, outcome.problems) == (1, [])
    said = only(judge("a ends below b.", "a ends below b | min loss label=a < max loss label=b"))
    assert said == 'page.md:5: "a ends below b" does not hold: 5.1234 is not < 4.75 (study/measures)'


@pytest.mark.parametrize(
    ("relation", "holds"), [("=", True), ("<=", True), (">=", True), ("<", False), (">", False)]
)
def test_equal_numbers_are_no_more_and_no_less_than_each_other(judge, relation, holds):
    """Of a number beside its bound and of two expressions; = is of the written digits, which are all there are."""
    outcome = judge("It is 4.75.", f"It is #. | {relation} min loss", f"It is | 19 / 4 {relation} min loss")
    assert (outcome.numbers, len(outcome.problems)) == (1, 0 if holds else 2)


TABLE = "| | loss | share |\n|---|---|---|\n| a | 5.16 | **3.1e-2** ± 1 |\n| `b` | 4.75 | 0.012 ± 1 |"
OF_ROWS = ("rows label", "| mean loss ; mean share", "| _")


def test_a_table_is_compared_row_by_row(judge):
    outcome = judge(TABLE, *OF_ROWS)
    assert (outcome.numbers, outcome.problems) == (4, [])
    assert only(judge(TABLE.replace("4.75", "4.57"), *OF_ROWS)).startswith(
        "page.md:6: written 4.57, which should be"
    )
    assert "row 'b' has 2 numbers, the mark 3" in only(judge(TABLE.replace("12 ± 1", "12"), *OF_ROWS))
    assert "no row of the table has label=c" in only(judge(TABLE.replace("`b`", "c"), *OF_ROWS))
    assert "no table stands" in only(judge("Only words.", *OF_ROWS))
    assert "line 9: no bar" in only(judge(TABLE, "rows label", "mean loss"))
    assert "no text before its bars" in only(judge(TABLE, "rows label", "a | mean loss"))


def test_runs_of_one_name_in_two_experiments_have_their_own_columns(judge, tmp_path):
    place = tmp_path / "results" / "published" / "study"
    rows = ROWS.assign(experiment=["e", "e", "f", "f"], run="x")
    rows.to_parquet(place / "measures.parquet")
    runs = pd.DataFrame({"experiment": ["e", "f"], "run": "x", "depth": [4, 24]})
    runs.to_parquet(place / "runs.parquet")
    outcome = judge("loss 6.0, of f 24", "loss #, | max loss depth=24", "of f # | max depth experiment=f")
    assert (outcome.numbers, outcome.problems) == (2, [])


def test_a_row_has_the_columns_of_its_run(judge, tmp_path):
    place = tmp_path / "results" / "published" / "study"
    rows = ROWS.assign(experiment="e", run=["x", "x", "y", "y"])
    rows.to_parquet(place / "measures.parquet")
    pd.DataFrame({"experiment": "e", "run": ["x", "y"], "depth": [4, 24], "loss": 0.0}).to_parquet(
        place / "runs.parquet"
    )
    assert judge("loss 6.0", "loss # | max loss depth=24").problems == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("# nats | mean loss layer=7", "no row of the table has layer=7"),
        ("# nats | mean lost", "no column 'lost'; there are loss"),
        ("# nats | mean loss lable=a", "no column 'lable'; there are label"),
        ("# nats | mean of mean loss per lable", "no column 'lable'"),
        ("# nats | mode loss", "no aggregate 'mode'; there are mean"),
        ("# nats | mean label", "column 'label' holds no numbers"),
        ("# nats | only loss label=a", "2 rows where `only` takes one"),
        ("# nats | std loss label=b", "no finite number for: std loss label=b"),
        ("# nats | mean loss / 0", "no finite number"),
        ("# nats | mean loss layer=x", "column 'layer' holds numbers, and 'x' is not a number"),
        ("# nats | mean loss label<a", "which only = and != compare"),
        ("# nats | mean loss here", "'here' is not a condition"),
        ("# nats | loss", "a term is AGGREGATE COLUMN"),
        ("# nats | mean loss ; mean loss", "1 numbers (#) and 2 expressions"),
        ("# bits | mean loss", '"# bits" stands nowhere between the heading and the mark, not once'),
        ("# | mean loss", "stands 2 times"),
        ("nats | mean loss", "text without # takes EXPRESSION < EXPRESSION"),
        ("5.27 nats", "line 5: no bar between the text and its expression"),
        ('# nats | mean loss "label=b', "line 5: No closing quotation"),
    ],
)
def test_a_mark_that_cannot_be_followed_is_one_line(judge, line, why):
    said = only(judge("Here 5.27 nats, there 7 bits.".replace("bits", "others"), line))
    assert said.startswith("page.md:")
    assert why in said


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (
            "study/nothing",
            "no table results/published/study/nothing.parquet; there are measures.parquet, rows.csv",
        ),
        ("other/measures", "no table results/published/other/measures.parquet; there is no table at all"),
        ("../../etc/passwd", "names no table"),
        ("study:nothing", "no figure 'nothing'"),
        ("other:sinks", "no folder results/published/other"),
        ("study/measures colour=red", "no column 'colour'"),
        ("", "a mark names its table"),
    ],
)
def test_a_table_that_does_not_exist_is_one_line(judge, head, why):
    assert why in only(judge("It is 5.", "It is #. | mean loss", head=head))


def test_a_number_does_not_begin_in_the_middle_of_another(judge):
    assert "stands nowhere" in only(judge("Version 1.2.3 nats", "# nats | mean loss"))


def test_a_mark_without_lines_and_a_missing_file_are_one_line(judge, tmp_path):
    assert "this mark checks nothing" in only(judge("It is 5."))
    assert "page.txt" in only(check(tmp_path / "page.txt", Tables(tmp_path)))


def test_a_text_is_searched_from_its_heading_on_and_without_other_marks(judge):
    text = "It is 7, not\n\n## Next\n\nIt is\n4.75, not\n<!-- It is 8, not\n# no heading\n-->"
    assert judge(text, "It is #, | min loss").problems == []


def test_the_program_ends_with_1_where_a_number_is_off(judge, tmp_path, capsys):
    judge("It is 4.75.", "It is #. | min loss")
    assert main([str(tmp_path / "page.md")], tmp_path) == 0
    assert "1 numbers and 0 statements compared with their tables, 0 wrong" in capsys.readouterr().out
    judge("It is 4.76.", "It is #. | min loss")
    assert main([str(tmp_path / "page.md")], tmp_path) == 1
    assert "page.md:3: written 4.76, which should be = 4.75" in capsys.readouterr().err


@pytest.mark.parametrize("row", ["|a|12|3 %|", "| a | 12 | 3 % |", "| **a** |12| 3%|"])
def test_every_number_behind_the_first_cell_is_one_of_the_row(row):
    text = (
        f"# h\n\n|x|y|z|\n|---|---|---|\n{row}\n\n<!-- check steps.csv\nrows model\n| only y ; only z\n-->\n"
    )
    (mark,) = marks(text)
    ((label, numbers),) = table_rows(text, mark)
    assert (label, [(one.text, one.percent) for one in numbers]) == ("a", [("12", False), ("3", True)])

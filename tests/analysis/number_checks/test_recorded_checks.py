"""A text with every kind of mark, right and wrong: what the check says of each, and the exit status."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support import recorded

from analysis.evidence.number_checks.__main__ import main
from analysis.evidence.number_checks.annotations import marks, quoted, table_rows
from analysis.evidence.number_checks.queries import evaluate
from analysis.files import ResultsError

RECORDED = Path(__file__).with_name("recorded")
ROWS = pd.DataFrame(
    {
        "label": ["a", "a", "b", "b c"],
        "layer": pd.array([0, 1, 0, None], "Int64"),
        "loss": [5.1234, 5.2, 4.75, 6.0],
        "share": [0.0365, 0.025, 0.012, 0.4],
        "steps": [1000, 16640, 250, 1],
        "part": ["mixer", "", None, ""],
        "run": ["r1", "r1", "r2", "r2"],
        "experiment": ["study"] * 4,
    }
)
RIGHT = """# Log

The loss is 5.12 and then 5.2, a share of 3.65 % of 16,640 steps (−1.2e4 less), about
1.5 times as many; at most 17,000, at least 1, below 16,641 and above 0.
It falls, and means of one are alike. A half may be written as 2 or as 3.

<!-- check study/measures label=a
loss is # and then # | only loss layer=0 ; only loss layer=1
share of # % | only share layer=0
of # steps | max steps
steps (# less | 4640 - 16640
about # times | 3 / 2
at most #, | >= max steps
at least #, | <= min steps
below # and | > max steps
above #. | < min steps
It falls | only loss layer=0 < only loss layer=1
written as # or as #. | 5 / 2 ; 5 / 2
are alike | mean loss layer=0 = only loss layer=0
-->

## Rows

| name | loss | share | steps |
|---|---:|---|---|
| a | 5.162 | 3.1 % | 2 |
| **b c** | 6.0 | 40 % | 1 |

<!-- check study/measures.csv
rows label
| mean loss ; mean share
| count steps
-->
"""
WRONG = """# Log

The loss is 5.13 and then 5.3, a share of 3.6 % of 16,641 steps; loss of 4.75 and of 4.75; at most 3, at least 99,999.
It rises, with no relation.

<!-- check study/measures label=a
loss is # and | only loss layer=0
then #, | only loss layer=1 ; only loss
share of # % | only share layer=0
of # steps | max steps
loss of # | max loss
nowhere # | max loss
at most #, | >= max steps
at least # | <= min steps
It rises | only loss layer=0 > only loss layer=1
no relation | only loss layer=0
loss is # | only loss
-->
<!-- check study/measures label=d
The loss is # | max loss
-->
<!-- check study/nothing
The loss is # | max loss
-->
<!-- check ../study
The loss is # | max loss
-->
<!-- check study:nothing
The loss is # | max loss
-->
<!-- check study/measures
rows label
| max loss
-->
"""
EXPRESSIONS = (
    *("mean loss", "median steps", "min share", "std loss", "sum steps", "count part", "nunique label"),
    *(
        "only loss label=b",
        "max loss layer!=0",
        "max loss layer=0|1",
        "min loss layer=",
        "max loss part=mixer",
    ),
    *(
        "count loss part=",
        "count loss part!=",
        "mean steps loss<5.2",
        "mean steps loss<=5.2",
        "mean steps loss>5.2",
    ),
    *("mean steps loss>=5.2", "max of mean loss per label", "min of sum steps label!=b per label,layer"),
    *(
        "max steps / min steps",
        "max loss - min loss * 2",
        "1e3 * mean share",
        "count loss label=a|b",
        "3 - 2 - 1",
    ),
    *("max loss label=nobody", "max nothing", "max part", "largest loss", "loss", "max loss label<a"),
    *(
        "max loss layer=x",
        "only loss",
        "max loss layer<1|2",
        "max loss layer",
        "1 / 0",
        "max of loss",
        "max loss per label",
    ),
)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "results" / "published" / "study"
    folder.mkdir(parents=True)
    ROWS.to_parquet(folder / "measures.parquet")
    ROWS.to_csv(folder / "measures.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_check_says(place, capsys):
    broken = (
        "<!-- check\na # | max loss\n-->",
        "<!-- check study/measures\n-->",
        "<!-- check study/measures\na 1\n-->",
    )
    texts = {"right.md": RIGHT, "wrong.md": WRONG, "quote.md": "<!-- check a/b\na # | 'max\n-->"}
    texts |= {f"broken{n}.md": text for n, text in enumerate(broken)}
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    lines = []
    for names in (["right.md"], ["wrong.md"], ["wrong.md", "right.md"], [*texts], ["not_there.md"], []):
        status = main(names, place)
        said = capsys.readouterr()
        lines += [f"{' '.join(names)}: exit status {status}", *said.out.splitlines(), *said.err.splitlines()]
    recorded.check(RECORDED / "checks.txt", lines)


def test_what_a_mark_annotates():
    lines = []
    for mark in marks(RIGHT):
        lines += list(recorded.flat(mark, "mark"))
        found = [table_rows(RIGHT, mark)] if mark.rows else [quoted(RIGHT, mark, line) for line in mark.lines]
        lines += [line for numbers in found for line in recorded.flat(numbers, "written")]
        if not mark.rows:
            written = [one for line in mark.lines for one in quoted(RIGHT, mark, line)]
            lines += [f"{one.text} is {one.value:g} to {one.half:g}, line {one.number}" for one in written]
    recorded.check(RECORDED / "marks.txt", lines)


def test_values_of_expressions():
    lines = []
    for expression in EXPRESSIONS:
        try:
            lines.append(f"{expression}: {recorded.number(evaluate(expression.split(), ROWS))}")
        except ResultsError as error:
            lines.append(f"{expression}: {error}")
    recorded.check(RECORDED / "expressions.txt", lines)

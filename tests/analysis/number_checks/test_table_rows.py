"""Numbers of a Markdown table's rows, however tightly its cells are written."""

import pytest

from analysis.evidence.number_checks.annotations import marks, table_rows


@pytest.mark.parametrize("row", ["|a|12|3 %|", "| a | 12 | 3 % |", "| **a** |12| 3%|"])
def test_every_number_behind_the_first_cell_is_one_of_the_row(row):
    text = (
        f"# h\n\n|x|y|z|\n|---|---|---|\n{row}\n\n<!-- check steps.csv\nrows model\n| only y ; only z\n-->\n"
    )
    (mark,) = marks(text)
    ((label, numbers),) = table_rows(text, mark)
    assert (label, [(one.text, one.percent) for one in numbers]) == ("a", [("12", False), ("3", True)])

"""Recorded outputs: words and whole numbers exactly, other numbers within a tolerance, a difference shown."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import recorded
from support.seen_pages import only_in_markdown, table_lines


def recording(folder: Path, *lines: str) -> Path:
    path = folder / "case.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(autouse=True)
def not_recording(monkeypatch):
    monkeypatch.setattr(recorded, "recording", False)


def test_the_same_words_and_near_numbers_pass(tmp_path):
    path = recording(tmp_path, "loss 1.2500000 nats", "n=12, t=-3.0e-05 v1.2.3", "-0.0")
    recorded.check(path, ["loss 1.2500001 nats", "n=12, t=-3.00000001e-05 v1.2.3", "0.0"])


@pytest.mark.parametrize(
    "said",
    [
        "loss 1.251 nats, n=12",
        "loss 1.25 bits, n=12",
        "loss 1.25 nats, n=13",
        "loss -1.25 nats, n=12",
        "loss 1.25",
    ],
)
def test_another_word_sign_count_or_number_fails(tmp_path, said):
    path = recording(tmp_path, "loss 1.25 nats, n=12")
    with pytest.raises(pytest.fail.Exception, match=r"1: - loss 1\.25 nats, n=12"):
        recorded.check(path, [said])


def test_large_whole_numbers_have_no_tolerance(tmp_path):
    with pytest.raises(pytest.fail.Exception):
        recorded.check(recording(tmp_path, "10000000 FLOPs"), ["10000001 FLOPs"])


@pytest.mark.parametrize("said", [["a", "b", "c"], ["a"], ["b", "a"], []])
def test_another_line_a_missing_line_and_another_order_fail(tmp_path, said):
    with pytest.raises(pytest.fail.Exception, match="--record"):
        recorded.check(recording(tmp_path, "a", "b"), said)


def test_what_was_never_recorded_fails(tmp_path):
    with pytest.raises(pytest.fail.Exception, match="--record"):
        recorded.check(tmp_path / "new.txt", ["a"])


def test_recording_writes_what_then_passes(tmp_path, monkeypatch):
    path = tmp_path / "recorded" / "new.txt"
    table = pd.DataFrame({"model": ["a", "b"], "loss": [1.0, float("nan")]})
    lines = list(
        recorded.flat({"table": table, "bars": np.arange(4).reshape(2, 2), "text": "x\ny", "none": {}})
    )
    monkeypatch.setattr(recorded, "recording", True)
    recorded.check(path, lines)
    monkeypatch.setattr(recorded, "recording", False)
    recorded.check(path, lines)
    assert path.read_text().splitlines() == [
        "table: table 2 x 2 ¦  model | loss ¦  a | 1.0 ¦  b | nan",
        "bars: 2x2 [0, 1, 2, 3] ¦ text: x ¦ y ¦ none: empty",
    ]


LINES = (
    ["a", "b", "", "c", "# head", "  in", "  deeper", "   more", "out", " one space", "next", "x" * 200, "y"],
    [f"number {place} of a long stanza" for place in range(40)],
    ["a part ¦ and another", "z"],
    [],
)


@pytest.mark.parametrize("lines", LINES)
def test_folded_lines_are_the_same_when_they_are_taken_apart(lines):
    lines = list(recorded.unfold(lines))
    folded = list(recorded.fold(lines))
    assert list(recorded.unfold(folded)) == (lines or [""])
    assert all(len(line) <= recorded.WIDTH or recorded.PART not in line for line in folded)


def test_a_stanza_begins_a_line_whatever_is_said_before_it():
    stanza = ["== head", "a", "b", "of many", "  in it"]
    alone = list(recorded.fold(stanza))
    assert alone == ["== head ¦ a ¦ b", "of many ¦  in it"]
    assert list(recorded.fold([*"abc", *stanza]))[-2:] == alone


def test_a_part_of_a_folded_line_that_differs_is_shown_alone(tmp_path):
    path = recording(tmp_path, "a 1 ¦ b 2 ¦  c 3")
    recorded.check(path, ["a 1", "b 2", "  c 3"])
    with pytest.raises(pytest.fail.Exception, match=r"2: - b 2\n2: . b 4"):
        recorded.check(path, ["a 1", "b 4", "  c 3"])


def test_what_a_page_lacks_of_its_markdown_is_found():
    html = "<p>a <b>b</b></p><table><tr><th>c|<td data-sort=1>d</table><script>e</script>"
    html = html.replace("<td", "</th><td").replace("</table>", "</td></tr></table>")
    assert only_in_markdown("# no\n- a b\n| c\\| | d |\n| --- | -: |\n", html) == []
    assert only_in_markdown("- e\n| d | f |", html) == ["e", " f "]
    assert list(table_lines(html)) == ["# table", "c| | d [1]"]

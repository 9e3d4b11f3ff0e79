"""Figures of job=bench: a panel a case, a line a form, gaps where there is no time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.plotting.bench import draw, draw_table


def row(model: str, backend: str, tokens: int, ms: float | None, mode: str = "forward") -> dict:
    times = {f"milliseconds_{key}": ms for key in ("median", "low", "high")}
    note = "" if ms else "out of memory"
    return {
        "suite": "kernels",
        "model": model,
        "backend": backend,
        "mode": mode,
        "tokens": tokens,
        **times,
        "note": note,
    }


ROWS = [
    *(row("mesa", "triton", n, n / 100) for n in (512, 1024, 2048)),
    *(row("mesa", "fla", n, None if n > 1024 else n / 50) for n in (512, 1024, 2048)),
    row("cayley", "triton", 512, 0.1),
    row("mesa", "triton", 512, 9.0, mode="forward+backward"),
]


def test_a_panel_a_case_and_a_line_a_form():
    rows = pd.DataFrame([x for x in ROWS if x["mode"] == "forward" and x["milliseconds_median"]])
    mesa, cayley = draw(rows, "model", "backend").axes
    assert [len(line.get_xdata()) for line in mesa.get_lines()] == [3, 2]
    assert list(mesa.get_lines()[0].get_ydata()) == [5.12, 10.24, 20.48]
    assert (mesa.get_title("left"), cayley.get_title("left")) == ("mesa", "cayley")


def test_a_figure_a_mode_beside_the_table(tmp_path: Path):
    table = tmp_path / "kernels.csv"
    pd.DataFrame(ROWS).to_csv(table, index=False)
    names = {path.name for path in draw_table(table)}
    assert names == {
        f"kernels_{mode}.{kind}" for mode in ("forward", "forward_backward") for kind in ("svg", "png")
    }
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)


def test_tables_of_other_suites_and_of_no_times_have_no_figure(tmp_path: Path):
    other, empty = tmp_path / "latency.csv", tmp_path / "kernels.csv"
    pd.DataFrame(ROWS).to_csv(other, index=False)
    pd.DataFrame([x for x in ROWS if not x["milliseconds_median"]]).to_csv(empty, index=False)
    assert draw_table(other) == draw_table(empty) == draw_table(tmp_path / "models.csv") == []

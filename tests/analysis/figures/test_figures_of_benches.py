"""Figures of job=bench: a panel a case, a line a form, gaps where there is no time."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.figures import inference
from analysis.files import NoData
from analysis.plotting.bench import draw, draw_table


def row(model: str, backend: str, tokens: int, ms: float | None, mode: str = "forward") -> dict:
    times = {f"milliseconds_{key}": ms for key in ("median", "low", "high")}
    note = "" if ms else "out of memory"
    about = {"suite": "kernels", "model": model, "backend": backend, "mode": mode, "tokens": tokens}
    return {**about, **times, "note": note}


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


@pytest.mark.slow
def test_a_figure_a_mode_beside_the_table(tmp_path: Path):
    table = tmp_path / "kernels.csv"
    pd.DataFrame(ROWS).to_csv(table, index=False)
    names = {path.name for path in draw_table(table)}
    assert names == {
        f"kernels_{mode}.{kind}" for mode in ("forward", "forward_backward") for kind in ("svg", "png")
    }
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)


def test_inference_is_drawn_against_the_context(inference_csv):
    table = inference.read(inference_csv, batch=8)
    assert set(table["batch"]) == {8}
    decode, state, prefill = inference.draw(table, batch=8).axes
    for axes in (decode, state, prefill):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert [len(line.get_xdata()) for line in axes.get_lines()] == [3, 3, 3, 2]
    ours, theirs, constant, _ = decode.get_lines()
    assert list(ours.get_ydata()) == [2.25, 3.0, 6.0]
    assert list(theirs.get_ydata()) == [2.75, 3.5, 6.5]
    assert (ours.get_linestyle(), theirs.get_linestyle()) == ("-", "--")
    assert ours.get_color() == theirs.get_color() == "#4d4d4d"
    assert list(constant.get_ydata()) == [3.0, 3.0, 3.0]
    assert set(state.get_lines()[2].get_ydata()) == {8 * 4096}
    assert prefill.get_lines()[2].get_ydata()[0] == pytest.approx(1e3 * 8 * 256 / (3.0 * 256 / 16))
    (legend,) = decode.figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["transformer", "Llama, transformers", "kda_pure", "nsa"]


def test_the_caption_of_inference_says_where_and_what_is_missing(inference_csv):
    text = inference.caption(inference.read(inference_csv, batch=1), batch=1)
    assert text.startswith("1 sequence on Some CPU, 1 thread(s), float32, width 64, 4 layers. Median of 5")
    assert (
        "Time of a step after 1,024 tokens, divided by the plain transformer's: kda_pure 1.00 and nsa 1.00."
        in text
    )
    assert text.endswith("Not measured, for time or memory: nsa (prefill, 4,096) and nsa (decode, 4,096).")


def test_a_table_of_inference_that_cannot_serve_says_why(inference_csv, tmp_path: Path):
    with pytest.raises(NoData, match="no times of 4 sequence"):
        inference.read(inference_csv, batch=4)
    (tmp_path / "short.csv").write_text("suite,model\na,b\n")
    with pytest.raises(NoData, match="no column color"):
        inference.read(tmp_path / "short.csv", batch=1)

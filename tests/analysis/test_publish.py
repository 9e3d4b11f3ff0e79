"""Published results: small files that know no machine, and read back as the runs they are of."""

from __future__ import annotations

import pytest

from analysis import ResultsError, load_results
from analysis.publish import publish


@pytest.mark.slow
def test_published_results_read_back_without_this_machines_paths(tmp_path, write_run):
    command = (
        "python run.py data.path=/home/me/text/wiki data.train_path=/home/me/a-b/t.parquet name=x/y lr=1e-3"
    )
    write_run(tmp_path / "results" / "exp", command=command)
    results = load_results(tmp_path / "results" / "exp")
    folder = publish(results, tmp_path / "published", ["loss_against_tokens"])
    again = load_results(folder)
    assert again.runs["command"].tolist() == [
        "python run.py data.path=wiki data.train_path=t.parquet name=x/y lr=1e-3"
    ]
    assert again.runs["test_loss"].tolist() == results.runs["test_loss"].tolist()
    assert len(again.metrics) == len(results.metrics) > 0
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    assert str(tmp_path).encode() not in content
    assert "Trained on pydocs" in (folder / "loss_against_tokens.txt").read_text()
    assert {path.suffix for path in folder.glob("loss_against_tokens.*")} == {".png", ".svg", ".txt"}


@pytest.mark.parametrize(("name", "why"), [("losses", "there are loss_against"), ("sinks", "job=probe")])
def test_a_figure_that_cannot_be_published_says_why(tmp_path, write_run, name, why):
    write_run(tmp_path / "exp")
    with pytest.raises(ResultsError, match=why):
        publish(load_results(tmp_path / "exp"), tmp_path / "published", [name])

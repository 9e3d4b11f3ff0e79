"""A figure's file that cannot be imported takes only its own figures away."""

import logging

import pytest

from analysis import figures
from analysis.gallery import listed


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ndef f(:\n", "analysis/figures/half_written.py: SyntaxError: invalid syntax (half_written.py, line 2)"),
        ("\nFIGURES = [Entry()]\n", "analysis/figures/half_written.py, line 2: NameError: name 'Entry' is not defined"),
    ],
)  # fmt: skip
def test_a_half_written_figure_is_named_and_left_out(tmp_path, monkeypatch, caplog, source, said):
    before = listed()
    folder = tmp_path / "analysis" / "figures"
    folder.mkdir(parents=True)
    (folder / "half_written.py").write_text(source)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(folder)])
    with caplog.at_level(logging.WARNING):
        assert listed() == before
    assert caplog.messages == [f"left out: {said}"]

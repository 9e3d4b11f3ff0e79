"""What the processes of a run tell whoever started them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import ROOT

from experiments.system import processes


def test_long_failures_of_several_processes_do_not_mix(tmp_path: Path):
    """Two processes at once, each with a record far above a pipe's PIPE_BUF."""
    tells = (
        "import sys, pathlib; from experiments.system import processes; "
        "processes.tell_failure(pathlib.Path(sys.argv[1]), {'traceback': sys.argv[2] * 50000})"
    )
    both = [f"{sys.executable} -c {shlex.quote(tells)} {tmp_path} {letter}" for letter in "ab"]
    process = subprocess.Popen(
        f"{both[0]} & {both[1]}; wait", shell=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    heard = list(processes.parse(process.stdout, tmp_path))
    process.wait()
    assert sorted(message["record"]["traceback"] for message in heard) == ["a" * 50000, "b" * 50000]


def test_words_that_were_printed_before_a_message_come_before_it(monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print("words")
        processes.tell(outcome="paused")
        monkeypatch.undo()
    with os.fdopen(read) as told:
        assert told.read().startswith(f"words\n{processes.MARK}")


def test_a_message_is_heard_as_it_was_told_and_other_words_are_printed(
    capfd: pytest.CaptureFixture[str], tmp_path
):
    processes.tell(outcome="paused", message="a\nb")
    line = capfd.readouterr().out
    assert line.count("\n") == 1
    assert list(processes.parse(["words\n", f"half {line}"], tmp_path)) == [
        {"outcome": "paused", "message": "a\nb"}
    ]
    assert capfd.readouterr().out == "words\nhalf "


def test_progress_is_sent_a_few_times_a_second_and_of_a_phase_its_beginning_and_its_end_always(monkeypatch):
    clock, sent = [0.0], []
    monkeypatch.setattr(processes.time, "monotonic", lambda: clock[0])
    send = processes.ThrottledSender(lambda message: sent.append(message[:2]))
    steps = processes.MIN_SECONDS * 0.6
    for number, (phase, done) in enumerate(
        (("train", 1), ("train", 2), ("train", 3), ("test", 1), ("test", 9)), start=10
    ):
        clock[0] = number * steps
        send(phase, done, 9)
    assert sent == [("train", 1), ("train", 3), ("test", 1), ("test", 9)]


def test_a_bar_is_drawn_for_each_phase_from_where_it_begins_and_none_where_it_is_off(monkeypatch):
    class Bar:
        def __init__(self, initial: int, desc: str, **options) -> None:
            self.n, self.desc = initial, desc
            drawn.append(self)

        def set_postfix_str(self, note: str, refresh: bool) -> None:
            self.note = note

        def update(self, more: int) -> None:
            self.n += more

        def close(self) -> None:
            self.desc += ", closed"

    drawn: list[Bar] = []
    monkeypatch.setattr(processes, "tqdm", Bar)
    for bar in (processes.Bar("a run"), processes.Bar("off", enabled=False)):
        for phase, done in (("train", 2), ("train", 5), ("test", 9)):
            bar(phase, done, 9, f"at {done}")
        bar.close()
    assert [(bar.desc, bar.n, bar.note) for bar in drawn] == [
        ("a run: train, closed", 5, "at 5"),
        ("a run: test, closed", 9, "at 9"),
    ]

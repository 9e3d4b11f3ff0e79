"""What processes tell whoever started them, what signals mean to them, and whether a tree has its commit's files."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import ROOT

from experiments.system import machine, processes


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


def test_a_message_is_heard_as_it_was_told_and_other_words_are_printed(capfd, tmp_path):
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


CHILD = """
import os, signal, sys, time
from experiments.system import signals
signals.pause_on_from_others(signal.SIGTERM, int(sys.argv[1]) or os.getppid())
print("ready", flush=True)
while signals.received() is None:
    time.sleep(0.01)
print(signals.received().name, flush=True)
"""


def started(own: int) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(own)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_another_process_tells_it_to_make_room():
    process = started(own=1)
    process.terminate()
    assert process.communicate()[0] == "SIGTERM\n"
    assert process.returncode == 0


def test_its_starter_ends_it():
    process = started(own=0)
    process.terminate()
    assert process.communicate()[0] == ""
    assert process.returncode == 143


@pytest.fixture
def tree(tmp_path: Path, monkeypatch) -> Path:
    """A repository with one commit: a block, a note and a results folder."""
    for path in ("zoo/mixers/known.py", "notes.txt", "results/table.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("known\n")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    assert machine.commit.__wrapped__() == (None, None), "there is no commit yet"
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    """Run git there, as somebody and without signatures."""
    own = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *own, *words], check=True)


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("zoo/mixers/known.py", True),
        ("notes.txt", True),
        ("zoo/mixers/mine.py", True),
        ("conf/experiment/mine.yaml", True),
        ("scratch.txt", False),
        ("results/table.csv", False),
        ("results/mine/run.json", False),
    ],
)
def test_a_new_file_of_code_is_a_change_and_a_scratch_file_is_none(tree: Path, path: str, dirty: bool):
    head, clean = machine.commit.__wrapped__()
    assert len(head) == 40
    assert not clean
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text("changed\n")
    assert machine.commit.__wrapped__() == (head, dirty)

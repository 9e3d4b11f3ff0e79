"""Whether a tree has changes that its commit does not hold."""

import subprocess
from pathlib import Path

import pytest

from experiments.system import machine


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

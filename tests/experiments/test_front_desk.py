"""Help, --cfg, job=list and refused keys: answered without PyTorch, as the command line does, and never stale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import ROOT

RUN = """
import runpy, sys
sys.argv = ["run.py", *sys.argv[1:]]
try:
    runpy.run_path("run.py", run_name="__main__")
finally:
    sys.stdout.flush()
    print("torch" in sys.modules, file=sys.stderr)
"""
QUESTIONS = ("--help", "--cfg job", "model=kda data=mqar seed=3 --cfg job", "job=list", "job=list tasks")
MISTAKES = (
    "optim.lrr=1",
    "lr=3",
    "-m trainer.stepz=1,2 model=kda",
    "model.residual.iters=3",
    "nothing.like.it=1",
)
LEFT_TO_OTHERS = (
    "seed.x=1 --cfg job",
    "seed.x=1",
    "optim.lrr=1 hydra.verbose=true",
    "optim.lrr=1 optim.lrr=2",
    "optim.lr=many --cfg job",
    "job=list nothing",
    "model=nothing --cfg job",
)

Answer = tuple[int, str, str]


class Tree:
    """A copy of the program with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for room in ("kernels", "zoo", "experiments", "analysis", "conf"):
            shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "run.py", folder)

    def ask(self, words: str, cache: str = "cache") -> tuple[Answer, bool]:
        """The status and the words of both outputs, and whether PyTorch was imported."""
        environment = {**os.environ, "ARCHZOO_CACHE": str(self.folder / cache), "PYTHONPATH": ""}
        command = [sys.executable, "-c", RUN, *words.split()]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        told, _, torch = done.stderr.rstrip().rpartition("\n")
        return (done.returncode, done.stdout, told), torch == "True"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Tree:
    made = Tree(tmp_path_factory.mktemp("tree"))
    for question in ("--help", "job=list"):
        _, torch = made.ask(question)
        assert torch, "nothing was known yet"
    return made


@pytest.mark.parametrize("words", [*QUESTIONS, *MISTAKES])
def test_questions_and_refused_keys_are_answered_without_torch(tree: Tree, words: str):
    answer, torch = tree.ask(words)
    assert not torch
    assert answer[0] == (2 if words in MISTAKES else 0)
    assert answer[2] if words in MISTAKES else answer[1]


@pytest.mark.slow
@pytest.mark.parametrize("words", [*QUESTIONS, *MISTAKES, *LEFT_TO_OTHERS])
def test_the_answer_is_that_of_the_command_line(tree: Tree, words: str):
    known, _ = tree.ask(words)
    (tree.folder / "no_cache").touch()  # a file, so that no catalogue can be written
    answer, torch = tree.ask(words, cache="no_cache")
    assert torch
    assert known == answer


def test_a_block_that_was_added_is_there_and_one_with_a_mistake_is_told(tree: Tree):
    mixer = (tree.folder / "zoo/mixers/gated_conv.py").read_text()
    new = tree.folder / "zoo/mixers/newcomer.py"
    new.write_text(mixer.replace('"gated_conv"', '"newcomer"').replace('letter="C"', 'letter="Y"'))
    try:
        (status, shown, _), torch = tree.ask("--cfg job")
        assert torch, "the catalogue is of other files"
        assert status == 0
        assert "    newcomer:\n" in shown
        again, torch = tree.ask("--cfg job")
        assert again[1] == shown
        assert not torch
        new.write_text("this is no Python\n")
        for _ in range(2):
            (status, shown, told), _ = tree.ask("--cfg job")
            assert status == 0
            assert "newcomer" not in shown
            assert "zoo/mixers/newcomer.py, line 1: SyntaxError" in told
    finally:
        new.unlink()


def test_a_damaged_catalogue_is_written_anew(tree: Tree):
    place = tree.folder / "cache" / "catalogue.json"
    whole = place.read_text()
    place.write_text(whole[:-10])
    first, torch = tree.ask("--cfg job")
    assert torch
    second, torch = tree.ask("--cfg job")
    assert not torch
    assert first == second

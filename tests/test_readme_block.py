"""The README's "add a block" example is a whole mixer: one file, and everything else picks it up."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(# (zoo/mixers/(\w+)\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)


def example() -> tuple[str, str, str, str]:
    """Path, name, pattern letter and source of the mixer in the README."""
    found = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) == 1, "README.md needs one python block that begins with '# zoo/mixers/NAME.py'"
    source, path, name = found[0]
    (letter,) = re.findall(r'letter="([A-Z])"', source)
    return path, name, letter, source


def copy_tree(folder: Path) -> None:
    """What git would commit of the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def contents(folder: Path) -> dict[str, str]:
    """Every file's hash by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def python(folder: Path, *arguments: str) -> str:
    """Run Python in the copy; its output, with the test failed if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the repository with the README's mixer in it."""
    folder = tmp_path_factory.mktemp("archzoo")
    copy_tree(folder)
    path, _, _, source = example()
    assert not (folder / path).exists(), f"the README's example would overwrite {path}"
    (folder / path).write_text(source, encoding="utf-8")
    return folder


def test_the_readme_has_an_example_of_about_forty_lines():
    _, name, letter, source = example()
    assert name
    assert letter
    code = [line for line in source.splitlines() if line.strip()]
    assert len(code) <= 70


@pytest.mark.slow
def test_the_example_passes_the_contract_tests(tree):
    _, name, _, _ = example()
    before = contents(tree)
    # The README's own command; "not gpu" spares a machine without one the skips that it would name.
    said = python(tree, "-m", "pytest", "tests/zoo", "-k", name, "-m", "not gpu", "-p", "no:cacheprovider")
    # Every contract has one case of this mixer; none may have been skipped or missed.
    passed = re.search(r"(\d+) passed", said)
    assert passed, said
    assert int(passed.group(1)) >= 15
    assert not re.search(r"\d+ (failed|error|skipped)", said), said
    assert contents(tree) == before


@pytest.mark.slow
def test_the_example_trains_from_the_command_line(tree, tmp_path):
    _, name, letter, _ = example()
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"Line {i}: the quick brown fox jumps over {i * i} dogs." for i in range(800)))
    before = contents(tree)
    settings = {
        "model.pattern": f"{letter}F",
        "model.depth": 2,
        "model.d_model": 16,
        "model.n_heads": 2,
        "data": "text",
        "data.path": text,
        "data.cache_dir": tmp_path / "cache",
        "data.tokenizer": "bytes",
        "data.seq_len": 32,
        "data.batch_size": 2,
        "trainer.max_steps": 3,
        "results": tmp_path / "results",
        "name": "readme",
    }
    python(tree, "run.py", *(f"{key}={value}" for key, value in settings.items()))
    (summary,) = (tmp_path / "results" / "readme").glob("*/summary.json")
    assert f'"name": "{name}"' in summary.read_text()
    assert name in python(tree, "run.py", "job=list")
    assert contents(tree) == before

"""A copy of the working tree, into which a test may put files, and Python run in it."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(
    r"^```python\n(# ((?:zoo|analysis|experiments)/[\w/]+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL
)


def shown(page: str) -> dict[str, str]:
    """Path -> source of the files that a page shows in full."""
    return {path: source for source, path in FILE.findall((ROOT / page).read_text(encoding="utf-8"))}


def copy_tree(folder: Path) -> None:
    """Copy what git would commit of the working tree."""
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
    """Every file's hash by its path; not of what interpreters and compilers keep in `__pycache__`."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def python(folder: Path, *arguments: str) -> str:
    """Run Python in the copy; its output, with the test failed if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "ARCHZOO_CACHE": f"{folder}-cache"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

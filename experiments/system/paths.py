"""Paths of this project: its root folder, conf/, the published studies, the cache; and how others find the program.

In a checkout the root is the repository; in the wheel it is the package, and the cache stands in the user's folder.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
PUBLISHED = ROOT / "results" / "published"
SELECTION = "selection.csv"
BUILT = ROOT / "built.json"
"""What a wheel was built from (distribution/one_package.py); a checkout has no such file."""

IN_WHEEL = BUILT.is_file()
"""Whether this is the wheel's package and no checkout."""
CACHE = Path((os.environ.get("XDG_CACHE_HOME") or "~/.cache") if IN_WHEEL else ROOT / ".cache") / "archzoo"
"""The cache where neither a key nor ARCHZOO_CACHE says otherwise; ~ is not expanded."""
BLOCKS = "ARCHZOO_BLOCKS"
"""Environment variable of folders with blocks that stand in no room, as the command's blocks=[FOLDER] gives them."""


def program() -> list[str]:
    """The words by which this Python runs the command line from any folder."""
    return [sys.executable, "-m", ROOT.name] if IN_WHEEL else [sys.executable, str(ROOT / "run.py")]


def import_path() -> list[str]:
    """Folders from which other processes import this code: the checkout; none for a wheel, which is installed."""
    return [] if IN_WHEEL else [str(ROOT)]


def python_path() -> str:
    """The environment variable PYTHONPATH for processes that import this code from any working folder."""
    return os.pathsep.join([*import_path(), *filter(None, [os.environ.get("PYTHONPATH")])])

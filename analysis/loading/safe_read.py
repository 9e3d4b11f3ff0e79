"""Reading files inside a folder without following symbolic links out of it.

Results may come from strangers, and a report carries texts and tables of every run's folder with it. The folder that
was asked for is trusted, even if it is itself a link; a path below it is read only if no link leads out of it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 2**28
"""Bytes above which a file is not accepted as a run's: the largest that a run writes have some millions."""


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a path below a folder leads, through symbolic links, out of it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def own_file(folder: Path, name: str, largest: int = LARGEST) -> Path:
    """Return the path of a regular file inside a folder.

    Raises OSError where it is not there, is no regular file (a pipe would never end), has more than ``largest``
    bytes, or lies elsewhere and is only linked to.
    """
    path = folder / name
    if leads_out(path, folder):
        raise OSError(f"it is a link out of its folder, to {os.path.realpath(path)}")
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise OSError("it is no regular file")
    if info.st_size > largest:
        raise OSError(f"it has {info.st_size:,} bytes, more than any such file of a run")
    return path


def read_text(folder: Path, name: str, largest: int = LARGEST, errors: str = "strict") -> str:
    """Read the text of a file inside a folder. Raises OSError as `own_file` does, and UnicodeDecodeError."""
    return own_file(folder, name, largest).read_text(encoding="utf-8", errors=errors)

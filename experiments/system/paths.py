"""Paths of this project: its root folder, conf/, the published studies, the cache; and how others find the program.

In a checkout the root is the repository; in the wheel it is the package, and the cache stands in the user's folder.
"""

import os
import sys
import tempfile
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


_LONGEST = 200
"""Bytes of the longest name of an experiment; those of its selection and its temporary files are longer."""
NOT_EXPERIMENTS = ("report", "published", "verdict")
"""Folders among runs and experiments that hold no runs."""


def check_name(name: str, key: str) -> None:
    """Raise UserError for an experiment's name that is no plain folder's or that readers of results pass over."""
    if name in NOT_EXPERIMENTS:
        raise _mistake(
            f"{key}={name}: results/{name} is no place for runs; give another, e.g. {key}=my_experiment"
        )
    plain = name == name.strip() and not name.startswith((".", "_")) and not {"/", "\\"} & set(name)
    if not name or not plain or len(os.fsencode(name)) > _LONGEST:
        raise _mistake(
            f"{key}={name!r} must be one plain folder name of up to {_LONGEST} bytes that begins with a letter or "
            f"number, e.g. {key}=my_experiment"
        )


def check_folder(place: str, key: str) -> None:
    """Raise UserError for a place where there is no folder and none can be: below a file, or with too long a name."""
    if not place.strip():
        raise _mistake(f"{key}= is empty; give a folder, or leave it out")
    folder = Path(place).expanduser().absolute()
    try:
        nearest = next(
            above for above in (folder, *folder.parents) if os.path.lexists(above) and above.exists()
        )
    except OSError as error:
        raise _mistake(f"{key}={place}: {error.strerror}; give another folder") from error
    if not nearest.is_dir():
        raise _mistake(f"{key}={place}: {nearest} is a file; give a folder")


def check_file(place: str, key: str) -> None:
    """Raise UserError where no file can be written: in no folder, or in the place of anything but a regular file."""
    file = Path(place).expanduser()
    try:
        fits = file.parent.is_dir() and bool(file.name) and (file.is_file() or not os.path.lexists(file))
    except OSError as error:
        raise _mistake(f"{key}={place}: {error.strerror}; give another file") from error
    if not fits:
        raise _mistake(f"{key}={place} must be a regular file, or a new one in a folder that is there")


def check_writable(place: str | Path, key: str) -> None:
    """Raise UserError for a folder in which nothing can be made, or that cannot be made itself; leaves nothing."""
    check_folder(str(place), key)
    folder = Path(place).expanduser().absolute()
    nearest = next(above for above in (folder, *folder.parents) if above.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=nearest):
            pass
    except OSError as error:
        raise _mistake(
            f"{key}={place}: nothing can be written to {nearest} ({error.strerror}); give another folder"
        ) from error


def _mistake(message: str) -> Exception:
    from zoo.errors import (
        UserError,
    )  # zoo imports torch; run.py imports this module before it can be interrupted

    return UserError(message)


def program() -> list[str]:
    """The words by which this Python runs the command line from any folder."""
    return [sys.executable, "-m", ROOT.name] if IN_WHEEL else [sys.executable, str(ROOT / "run.py")]


def import_path() -> list[str]:
    """Folders from which other processes import this code: the checkout; none for a wheel, which is installed."""
    return [] if IN_WHEEL else [str(ROOT)]


def python_path() -> str:
    """The environment variable PYTHONPATH for processes that import this code from any working folder."""
    return os.pathsep.join([*import_path(), *filter(None, [os.environ.get("PYTHONPATH")])])

"""Choice of the folder of a published study, which lies below the folder of all published studies."""

from __future__ import annotations

from pathlib import Path

from analysis.errors import ResultsError
from analysis.files import refuse_link
from analysis.loading.folders import NOT_RUNS
from analysis.loading.results import Results

LONGEST_NAME = 100
"""Characters of a folder's name; file systems take 255 bytes."""


def target(results: Results, published: Path) -> Path:
    """Return the folder ``published``/EXPERIMENT of runs of one experiment; creates nothing.

    The name comes from the runs' files, which a stranger may have written. Raises ResultsError for runs of several
    experiments, for a name that is not one plain folder name, and where the path is a link or a file.
    """
    names = sorted(set(results.runs["experiment"]))
    if len(names) > 1:
        shown = ", ".join(map(repr, names[:5]))
        raise ResultsError(
            f"these runs are of {len(names)} experiments ({shown}); publish one: runs=results/NAME"
        )
    (name,) = names
    if not _plain(name):
        raise ResultsError(
            f"the runs call their experiment {name[:LONGEST_NAME]!r}, which is no plain folder name, so nothing was "
            "published; name it by its folder, as in results/NAME, in every summary.json"
        )
    for place in (published, published / name):
        refuse_link(place)
        if place.exists() and not place.is_dir():
            raise ResultsError(
                f"{place} is a file where a folder of published results has to be; move it away"
            )
    return published / name


def _plain(name: str) -> bool:
    """Return whether a name is a single path component that `load_results` can find."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and name == name.strip()
        and not name.startswith((".", "_"))
        and not set(name) & set("/\\")
        and name not in NOT_RUNS
    )

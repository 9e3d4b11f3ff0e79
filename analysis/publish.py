"""A study's results as small files that can be committed: tables of all its runs and the figures that matter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from analysis.comparison import compare, with_final_validation
from analysis.errors import NoData, ResultsError
from analysis.files import write_atomically, write_text
from analysis.gallery import draw, listed
from analysis.probes import TABLES
from analysis.results import PathLike, Results
from analysis.style import save

ABSOLUTE = re.compile(r"(?<![\w.])/(?:[^\s'\"/]+/)+([^\s'\"/]*)")


def publish(results: Results, folder: PathLike, figures: Iterable[str] = ()) -> Path:
    """Write runs.parquet, metrics.parquet, the probes' tables, comparison.csv and figures (PNG, SVG, caption as text).

    ``load_results(folder)`` reads it back. Nothing in it knows this machine's folders: a run's folder becomes
    experiment/run, an absolute path in a command its last part. Raises ResultsError for a figure that does not exist
    or that these results do not support.
    """
    folder = Path(folder)
    portable(results).to_parquet(folder)
    table = compare(with_final_validation(results))
    write_atomically(folder / "comparison.csv", partial(table.to_csv, index=False))
    known = [entry.name for entry in listed()]
    for name in figures:
        if name not in known:
            raise ResultsError(f"no figure '{name}'; there are {', '.join(known)}")
        try:
            figure, caption, _ = draw(name, results)
        except NoData as reason:
            raise ResultsError(f"figure {name}: {reason}") from reason
        save(figure, folder / name)
        write_text(folder / f"{name}.txt", caption + "\n")
    return folder


def portable(results: Results) -> Results:
    """The same results without this machine's paths."""
    runs = results.runs.assign(
        folder=results.runs["experiment"] + "/" + results.runs["run"],
        command=results.runs["command"].str.replace(ABSOLUTE, r"\1", regex=True),
    )
    return replace(results, runs=runs, tables={name: results.table(name) for name in TABLES})

"""Drawing the figures that analysis/figures registers, where the results support them."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from itertools import repeat
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from traceback import extract_tb
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from analysis import figures
from analysis.comparing.equal_terms import with_marks
from analysis.comparing.verdicts import Family
from analysis.figure_entry import Entry, report_order
from analysis.files import NoData, ResultsError, unknown, write_csv
from analysis.loading.columns import RUN_COLUMNS
from analysis.loading.probes import best_rates, probed_steps, steps_text
from analysis.loading.results import TABLES, Results, advice
from analysis.plotting.style import figure_note, mark_series, save, table_styles

HEAVY = 400_000
"""Bytes of an SVG above which the page carries the PNG in its place."""

MOST, DRAWN = 40, 6
"""Above so many settings (of a task) figures draw this many models: a legend of more names tells nothing."""

_NAMED = ("label", "series", "model")  # the column by which a figure styles its series
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of these results, or the reason why there is none.

    svg: the text of the file, "" where it is HEAVY; source: then the PNG as a data URL; runs: those drawn, empty
    where it is all of them.
    """

    name: str
    title: str
    caption: str = ""
    svg: str = ""
    source: str = ""
    missing: str = ""
    runs: tuple[str, ...] = ()
    section: str = ""


def listed() -> list[Entry]:
    """Return every figure that a module registers (FIGURES), in the order of a report.

    Modules are the files of analysis/figures, those with FIGURES in the folders of ARCHZOO_BLOCKS (`blocks=[FOLDER]`),
    and entry points of the group archzoo.blocks. One that cannot be used is named in a warning and left out: its
    author may be in the middle of it.
    """
    entries, unusable = _registered()
    for reason in unusable.values():
        _log.warning("left out: %s", reason)
    return report_order(entries)


def _registered() -> tuple[list[Entry], dict[str, str]]:
    """Return the figures of all modules, and module -> reason of those that cannot be used."""
    entries, unusable = [], {}
    for family in _families():
        try:
            found = [replace(entry, family=family) for entry in getattr(import_module(family), "FIGURES", ())]
            report_order(found)
            entries += found
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in a file ends nothing else
            unusable[family] = _import_failure(family, error)
    return entries, unusable


def _families() -> Iterator[str]:
    for found in pkgutil.iter_modules(figures.__path__):
        yield f"{figures.__name__}.{found.name}"
    for folder in filter(None, os.environ.get("ARCHZOO_BLOCKS", "").split(os.pathsep)):
        sys.path += [folder] * (folder not in sys.path)
        yield from (
            file.stem for file in sorted(Path(folder).glob("*.py")) if b"FIGURES" in file.read_bytes()
        )
    yield from (found.module for found in entry_points(group="archzoo.blocks"))


def _import_failure(family: str, error: BaseException) -> str:
    """Return `analysis/figures/NAME.py, line 3: NameError: ...`, with the line where that file went wrong."""
    file = f"{family.replace('.', '/')}.py"
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename.endswith(file)]
    if isinstance(error, SyntaxError):
        return f"{file}: SyntaxError: {error}"  # which names the file and line that it is in
    inside = f"{__package__.rpartition('.')[0]}.{getattr(error, 'name', None)}"
    # In the wheel, of a file that is for a checkout.
    moved = isinstance(error, ModuleNotFoundError) and inside in sys.modules
    here = f"; here it is {inside}" if moved else ""
    return f"{file}, line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}{here}"


class Selection(NamedTuple):
    """What figures draw: the models with all rates tried, and at their best rates alone, which probes' figures draw.

    labels: those at the best rates, and note: which these are; None and "" where figures draw everything.
    """

    tried: Results
    chosen: Results
    labels: frozenset[str] | None = None
    note: str = ""


def selection(results: Results, compared: Iterable[Family]) -> Selection:
    """Select the baselines and the best models of every family where there are more than figures can show."""
    runs = results.runs
    if runs.groupby(runs["task"].fillna(""))["label"].nunique().max() <= MOST:
        return Selection(results, results)
    best, place = best_rates(results), {}
    for family in compared:
        for number, label in enumerate(family.table.index, 1):
            mine = 0 if label == family.baseline else number
            place[label] = min(mine, place.get(label, mine))
    order = best["label"].map(place).fillna(len(best)).sort_values(kind="stable").index
    models = best.loc[order, "model"].drop_duplicates()
    drawn = best[best["model"].isin(models[:DRAWN])]
    labels = frozenset(drawn["label"])
    return Selection(
        results.part(runs["sweep"].isin(drawn["sweep"])),
        results.part(runs["label"].isin(labels)),
        labels,
        f"Figures draw {len(drawn['model'].unique())} of {len(models)} models, the best and the baseline, each at its "
        "best learning rate; tables/ has all.",
    )


def draw_figures(selected: Selection, folder: Path, workers: int = 1) -> list[ReportFigure]:
    """Draw every figure that the selected results support into ``folder`` as NAME.svg, .png and .csv (its table).

    A file of figures that cannot be used is one that is missing, with the reason.
    Those of text are left out of results of synthetic tasks alone, and the other way round.
    workers: processes that draw. Above 1 they are spawned, so the program that asks for them must keep its own work
    under ``if __name__ == "__main__"``.
    Raises ResultsError where a process that draws is killed, as for want of memory.
    """
    entries = [entry for entry in listed() if not drawn_runs(entry, selected.tried).runs.empty]
    unusable = _registered()[1].items()
    left_out = [ReportFigure(name, name, missing=f"left out: {reason}") for name, reason in unusable]
    bar = partial(tqdm, total=len(entries), desc="figures", unit="figure", file=sys.stderr, disable=None)
    if workers == 1:
        return [*bar(_draw_selected(entry, selected, folder) for entry in entries), *left_out]
    for kind, _, name in sorted({need.partition(".") for entry in entries for need in entry.needs}):
        if kind == "table":
            selected.chosen.table(name)  # read here: this process lists the files that cannot be read
        elif kind == "bench":
            selected.tried.bench(name)
        elif kind == "answers":
            selected.tried.of_tasks.table("answers")
    selected.chosen.table("measures")
    options = {"mp_context": get_context("spawn"), "initializer": _inherit, "initargs": (selected,)}
    with ProcessPoolExecutor(workers, **options) as pool:
        try:
            with _uninterrupted():
                drawn = pool.map(_draw_inherited, entries, repeat(folder))
            return [*bar(drawn), *left_out]
        except BrokenProcessPool as error:
            raise ResultsError(
                "a process that draws figures was killed, perhaps for want of memory; draw with fewer (sweep.workers=1)"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C in processes started inside (a terminal sends it to all): the parent process ends them.

    A signal that arrives in the parent meanwhile is delivered at the end.
    """
    resource_tracker.ensure_running()  # a process that, started inside, would let Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _inherit(selected: Selection) -> None:
    global _inherited
    _inherited = selected


def _draw_inherited(entry: Entry, folder: Path) -> ReportFigure:
    return _draw_selected(entry, _inherited, folder)


def _draw_selected(entry: Entry, selected: Selection, folder: Path) -> ReportFigure:
    return draw_figure(entry, selected.chosen if entry.probed else selected.tried, folder, selected.labels)


def draw_figure(
    entry: Entry, results: Results, folder: Path, labels: frozenset[str] | None = None
) -> ReportFigure:
    """Draw one figure into ``folder``, or return the reason why it is missing.

    labels: of its table, the models that are drawn (`Selection`); None: all.
    A figure that fails on odd data must not stop the others: its reason names the error, and the traceback is logged.
    Raises OSError where files cannot be written: no other figure could be.
    """
    try:
        return _drawn(entry, results, folder, labels)
    except NoData as reason:
        missing = str(reason)
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in a figure's file, too
        _log.exception("figure %s", entry.name)
        missing = f"drawing it failed ({type(error).__name__}: {error})"
    for suffix in (".svg", ".png", ".csv", ".csv.gz"):  # of an earlier report
        (folder / f"{entry.name}{suffix}").unlink(missing_ok=True)
    return ReportFigure(entry.name, entry.title, missing=missing, section=entry.section)


def _drawn(entry: Entry, results: Results, folder: Path, labels: frozenset[str] | None) -> ReportFigure:
    figure, caption, table = draw(entry, results, footnote=False, labels=labels)
    stem, few = folder / entry.name, labels is None
    (svg,) = save(figure, stem, [".svg"], small=not few)
    light = svg.stat().st_size <= HEAVY
    png = stem.with_name(f"{entry.name}.png")
    if few or not light:
        save(figure, stem, [".png"])
    else:  # of an earlier report
        png.unlink(missing_ok=True)
    write_csv(table, folder / f"{entry.name}.csv", small=not few)
    runs = tuple(table["run"].dropna().unique()) if "run" in table else ()
    if light:
        shown = {"svg": svg.read_text(encoding="utf-8")}
    else:
        shown = {"source": f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode()}"}
    return ReportFigure(entry.name, entry.title, caption, runs=runs, section=entry.section, **shown)


def drawn_runs(entry: Entry, results: Results) -> Results:
    """Return the results that a figure draws: all, or those of text or of synthetic tasks."""
    return getattr(results, f"of_{entry.of}") if entry.of else results


def draw(
    entry: Entry | str, results: Results, *, footnote: bool = True, labels: frozenset[str] | None = None
) -> tuple[Figure, str, pd.DataFrame]:
    """Return a registered figure, its caption and its table.

    footnote: whether the caption says what the marks of models mean that are not matched; a report says it once for
    all figures but those whose models are compared in groups of the figure's own. labels: the models that are drawn
    (`Selection`); None: all.

    Raises NoData where the results do not support it, ResultsError where there is none of the name.
    """
    if isinstance(entry, str):
        known = {one.name: one for one in listed()}
        if entry not in known:
            raise unknown("figure", entry, known)
        entry = known[entry]
    module, results = import_module(entry.family), drawn_runs(entry, results)
    if entry.of and results.runs.empty:
        raise NoData(f"it draws runs of {entry.of}, and there are none")
    for need in entry.needs:
        require(need, results)
    table: pd.DataFrame = module.table(results, **entry.options)
    if labels is not None and "label" in table:
        table = table[table["label"].isin(labels)].reset_index(drop=True)
    runs = [] if "run" not in table else list(table["run"].dropna().unique())
    shown, notes = table, []
    if entry.compares:
        shown, unmatched = with_marks(table, results.runs)
        if footnote or "group" in table:
            notes.append(unmatched)
    figure = module.draw(shown, **entry.options)
    column = next((name for name in _NAMED if name in shown and "color" in shown), None)
    if column is not None:
        mark_series(figure, table_styles(shown, column))
    if entry.probed:
        figure_note(figure, steps_text(probed_steps(results, runs)))
    return figure, " ".join(filter(None, [module.caption(shown, **entry.options), *notes])), table


def require(need: str, results: Results) -> None:
    """Raise NoData, with a command that helps, if the results lack data that a figure needs."""
    kind, _, name = need.partition(".")
    _CHECKS[kind](name, results)


def _runs(name: str, results: Results) -> None:
    if results.runs[name].isna().all():
        meaning = next(column.meaning for column in RUN_COLUMNS if column.name == name)
        raise NoData(f"no run recorded {name} ({meaning})")


def _metrics(name: str, results: Results) -> None:
    if name not in results.metrics or results.metrics[name].isna().all():
        raise NoData(f"no run has {name} in its metrics.csv")


def _measures(name: str, results: Results) -> None:
    if not (results.table("measures")["measure"] == name).any():
        raise NoData(f"no run has the measure {name}; {advice(results)}")


def _table(name: str, results: Results) -> None:
    if name not in TABLES:
        raise KeyError(f"probes write {', '.join(TABLES)}, not '{name}'")
    if results.table(name).empty:
        raise NoData(f"no run has probes/{name}.parquet; {advice(results)}")


def _bench(name: str, results: Results) -> None:
    if results.bench(name) is None:
        raise NoData(f"unmeasured: no {name} in these results or in a folder published/ beside them")


def _answers(axis: str, results: Results) -> None:
    if not (results.table("answers")["axis"] == axis).any():
        raise NoData(f"no run has answers.csv with its answers by {axis}; older runs have none")


_CHECKS: dict[str, Callable[[str, Results], None]] = {
    "runs": _runs,
    "metrics": _metrics,
    "measures": _measures,
    "table": _table,
    "bench": _bench,
    "answers": _answers,
}

"""Publishing a study as small files that can be committed: tables of all its runs and chosen figures."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from analysis.caveats.comparison import caveats
from analysis.comparing.answer import answers
from analysis.comparing.comparison_table import compare, order_metric, with_final_validation
from analysis.comparing.verdicts import families
from analysis.errors import NoData, ResultsError, unknown
from analysis.files import remove_partials, write_atomically, write_text
from analysis.gallery import draw, listed
from analysis.loading import selection
from analysis.loading.probe_tables import TABLES
from analysis.loading.results import PathLike, Results
from analysis.loading.split_tables import SPLIT_TABLES
from analysis.plotting.style import keep_lighter, save
from analysis.publishing import configurations, provenance
from analysis.publishing.folder import target
from analysis.publishing.provenance import Provenance, without_paths
from analysis.publishing.readme import findings, readme

README = "README.md"
DRAWN = (".png", ".svg", ".txt")


@dataclass(frozen=True)
class Publication:
    """Options of a publication that a person chooses: question, figures, notes.

    question: what it asks; figures: names of figures; source: where to get its text, if it has no public name;
    leave_out: tables of probes to leave out, for their size; command, commit, dirty: of this publication; baseline: the
    label that models are compared with (`analysis.comparing.verdicts.families`).
    """

    question: str | None
    figures: tuple[str, ...] = ()
    source: str | None = None
    leave_out: tuple[str, ...] = ()
    command: str = ""
    commit: str | None = None
    dirty: bool | None = None
    baseline: str | None = None


def publish(results: Results, published: PathLike, publication: Publication) -> Path:
    """Write a study into the folder ``published``/EXPERIMENT and return that; `load_results` reads it back.

    Written are README.md, configs.yaml, identities.json, provenance.json, runs.parquet, metrics.parquet, the probes'
    tables, comparison.csv and figures (SVG or PNG, which is smaller, and the caption as text); those of an earlier
    publication are deleted. All files are as small as they can be: they are committed. The section
    "Findings" of its README.md, which people write, stays.
    Nothing in it knows this machine's folders: a run's folder becomes experiment/run, an absolute path its last part.
    The runs may come from their own folders or from what was published of them.

    Raises ResultsError, and then nothing is written: without a question, for runs without configuration, for a text
    without a recorded source, for a figure or a baseline that does not exist or that these results do not support, and
    for a folder that cannot be used (`analysis.publishing.folder`).
    """
    folder = target(results, Path(published))
    facts = _provenance(results, publication)
    configs, identities = configurations.gather(results)
    figures = [_drawn(name, results) for name in _known(publication.figures)]
    warnings = [without_paths(text) for text in caveats(results)]
    runs = with_final_validation(results)
    table = compare(runs, publication.baseline)
    said = answers(families(runs, order_metric(runs), publication.baseline), results.table("documents"))
    shown = portable(results, _tables(publication.leave_out))
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        remove_partials(folder)
        earlier, written = _earlier(folder), _findings(folder)
        (folder / README).unlink(
            missing_ok=True
        )  # without it, a publication that was killed is recognised as incomplete
        files = [*shown.to_parquet(folder, small=True), *configurations.write(folder, configs, identities)]
        files.append(write_atomically(folder / "comparison.csv", partial(table.to_csv, index=False)))
        if len(results.selection):
            write = partial(results.selection.to_csv, index=False)
            files.append(write_atomically(folder / selection.FILE, write))
        files += [file for one in figures for file in one.write(folder)]
        names = sorted({file.name for file in files} | {README, provenance.FILE})
        facts = replace(facts, files=names)
        provenance.write(folder, facts)
        for name in earlier - set(names):
            (folder / name).unlink(missing_ok=True)
        write_text(folder / README, readme(shown, facts, warnings, said, written))
    return folder


def missing_parts(folder: PathLike) -> list[str]:
    """List the missing parts: a published folder must lead to its commands, code, configurations and text."""
    from analysis.loading.results import load_results

    folder = Path(folder)
    try:
        results, facts = load_results(folder), provenance.read(folder)
    except ResultsError as error:
        return [str(error)]
    configs, identities = configurations.read(folder)
    runs = set(results.runs["run"])
    found = [f"no {README}"] * (not (folder / README).is_file())
    for name, rows in ((configurations.CONFIGS, configs), (configurations.IDENTITIES, identities)):
        found += [f"{name} lacks run {run}" for run in sorted(runs - rows.keys())]
    if facts is None:
        return [*found, f"no {provenance.FILE}"]
    probed = {run for one in facts.probing for run in one.runs}
    tables = [results.table(name) for name in TABLES if name != "training"]
    seen = {run for table in tables for run in table["run"]}
    found += [f"nothing says how run {run} was probed" for run in sorted(seen - probed)]
    found += [f"no {name}" for name in facts.files if name != README and not (folder / name).is_file()]
    return found + ["no question"] * (not facts.question.strip())


def portable(results: Results, tables: Iterable[str] = TABLES) -> Results:
    """Return the results without paths of this machine, and with the named probe tables only."""
    runs = results.runs.assign(
        folder=results.runs["experiment"] + "/" + results.runs["run"],
        command=results.runs["command"].map(without_paths, na_action="ignore"),
    )
    kept = set(tables)
    frames = {name: results.table(name) if name in kept else results.table(name).iloc[:0] for name in TABLES}
    frames |= {name: results.table(name) for name in SPLIT_TABLES}
    return replace(results, runs=runs, tables=frames)


@dataclass(frozen=True)
class _Drawn:
    name: str
    figure: Figure
    caption: str

    def write(self, folder: Path) -> list[Path]:
        return [
            keep_lighter(*save(self.figure, folder / self.name)),
            write_text(folder / f"{self.name}.txt", self.caption + "\n"),
        ]


def _drawn(name: str, results: Results) -> _Drawn:
    try:
        figure, caption, _ = draw(name, results)
    except NoData as reason:
        raise ResultsError(f"figure {name}: {reason}") from reason
    return _Drawn(name, figure, caption)


def _known(figures: Iterable[str]) -> list[str]:
    known = [entry.name for entry in listed()]
    for name in figures:
        if name not in known:
            raise unknown("figure", name, known)
    return list(dict.fromkeys(figures))


def _tables(leave_out: Iterable[str]) -> list[str]:
    """The tables of probes to publish."""
    for name in leave_out:
        if name not in TABLES:
            raise ResultsError(f"no table '{name}' to leave out; there are {', '.join(TABLES)}")
    return [name for name in TABLES if name not in set(leave_out)]


def _provenance(results: Results, publication: Publication) -> Provenance:
    question = " ".join((publication.question or "").split())
    if not question:
        raise ResultsError("what does this study ask? Say so in a sentence: 'question=\"Does ... ?\"'")
    read = (provenance.read(folder) for folder in dict.fromkeys(results.exported.values()))
    earlier = [one for one in read if one is not None]
    source = publication.source or ""
    provenance.origins(results, source)
    return Provenance(
        question=question,
        command=without_paths(publication.command),
        commit=publication.commit,
        dirty=publication.dirty,
        source=" ".join(source.split()),
        probing=provenance.probing(results, earlier),
        notes=list(dict.fromkeys(note for one in earlier for note in one.notes)),
    )


def _earlier(folder: Path) -> set[str]:
    """Names of the figures and tables that earlier publications wrote: those listed and those found in the folder."""
    try:
        facts = provenance.read(folder)
    except ResultsError:
        facts = None
    figures = {f"{entry.name}{suffix}" for entry in listed() for suffix in DRAWN}
    known = figures | {f"{name}.parquet" for name in TABLES}
    written = {name for name in (facts.files if facts else ()) if name.endswith((*DRAWN, ".parquet"))}
    return {path.name for path in folder.iterdir() if path.name in known | written and not path.is_dir()}


def _findings(folder: Path) -> str:
    """The section that people wrote into the page of an earlier publication."""
    try:
        return findings((folder / README).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder for this publication; another one waits."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""Publishing a study as small files that can be committed: tables of all its runs, chosen figures, and a page.

`publish` is the entry; the sections after it make the parts: folder, provenance, README.md, configurations.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
import yaml
from matplotlib.figure import Figure

from analysis.caveats import caveats
from analysis.comparing.tables import compare, order_metric, with_final_validation
from analysis.comparing.verdicts import Answer, answers, families
from analysis.files import (
    NoData,
    ResultsError,
    engineering,
    listing,
    refuse_link,
    remove_partials,
    unknown,
    write_atomically,
    write_csv,
    write_text,
)
from analysis.gallery import draw, listed
from analysis.loading import tables
from analysis.loading.files import NOT_RUNS, read_text
from analysis.loading.results import TABLES, PathLike, Results, interrupted, records
from analysis.loading.tables import SPLIT_TABLES
from analysis.plotting.style import keep_lighter, save

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
    for a folder that cannot be used (`target`).
    """
    folder = target(results, Path(published))
    facts = _provenance(results, publication)
    configs, identities = gather(results)
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
        files = [*shown.to_parquet(folder, small=True), *write_configurations(folder, configs, identities)]
        files.append(write_csv(table, folder / "comparison.csv"))
        if len(results.selection):
            write = partial(results.selection.to_csv, index=False)
            files.append(write_atomically(folder / tables.FILE, write))
        files += [file for one in figures for file in one.write(folder)]
        names = sorted({file.name for file in files} | {README, FILE})
        facts = replace(facts, files=names)
        write_provenance(folder, facts)
        for name in earlier - set(names):
            (folder / name).unlink(missing_ok=True)
        write_text(folder / README, readme(shown, facts, warnings, said, written))
    return folder


def missing_parts(folder: PathLike) -> list[str]:
    """List the missing parts: a published folder must lead to its commands, code, configurations and text."""
    from analysis.loading.results import load_results

    folder = Path(folder)
    try:
        results, facts = load_results(folder), read_provenance(folder)
    except ResultsError as error:
        return [str(error)]
    configs, identities = read_configurations(folder)
    runs = set(results.runs["run"])
    missing = [f"no {README}"] * (not (folder / README).is_file())
    for name, rows in ((CONFIGS, configs), (IDENTITIES, identities)):
        missing += [f"{name} lacks run {run}" for run in sorted(runs - rows.keys())]
    if facts is None:
        return [*missing, f"no {FILE}"]
    probed = {run for one in facts.probing for run in one.runs}
    tables = [results.table(name) for name in TABLES if name != "training"]
    seen = {run for table in tables for run in table["run"]}
    missing += [f"nothing says how run {run} was probed" for run in sorted(seen - probed)]
    missing += [f"no {name}" for name in facts.files if name != README and not (folder / name).is_file()]
    return missing + ["no question"] * (not facts.question.strip())


def portable(results: Results, tables: Iterable[str] = TABLES) -> Results:
    """Return the results without paths of this machine, and with the named probe tables only."""
    runs = results.runs.assign(
        folder=results.runs["experiment"] + "/" + results.runs["run"],
        command=results.runs["command"].map(command_without_paths, na_action="ignore"),
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
            raise ResultsError(f"no table '{name}' to leave out; known are {', '.join(TABLES)}")
    return [name for name in TABLES if name not in set(leave_out)]


def _provenance(results: Results, publication: Publication) -> Provenance:
    question = " ".join((publication.question or "").split())
    if not question:
        raise ResultsError("job=publish needs the study's question in a sentence: 'question=\"Does ... ?\"'")
    read = (read_provenance(folder) for folder in dict.fromkeys(results.exported.values()))
    earlier = [one for one in read if one is not None]
    source = publication.source or ""
    origins(results, source)
    return Provenance(
        question=question,
        command=command_without_paths(publication.command),
        commit=publication.commit,
        dirty=publication.dirty,
        source=" ".join(source.split()),
        probing=probing(results, earlier),
        notes=list(dict.fromkeys(note for one in earlier for note in one.notes)),
    )


def _earlier(folder: Path) -> set[str]:
    """Names of the figures and tables that earlier publications wrote: those listed and those found in the folder."""
    try:
        facts = read_provenance(folder)
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


# The folder of a published study, below the folder of all published studies.

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
            f"the runs call their experiment {name[:LONGEST_NAME]!r}, which is not a plain folder name, so nothing was "
            "published; name it by its folder, as in results/NAME, in every summary.json"
        )
    for place in (published, published / name):
        refuse_link(place)
        if place.exists() and not place.is_dir():
            raise ResultsError(f"{place} is a file, and must be a folder of published results; move it")
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


# Provenance: question, commands, code, texts and probe passes. provenance.json holds the facts that are neither in
# runs.parquet nor in configs.yaml; README.md lists them all.

FILE = "provenance.json"
ABSOLUTE = re.compile(r"(?<![\w.])(?<!:/)/(?:[^\s'\"/]+/+)+([^\s'\"/]+)/*")
PUBLIC = {
    "pydocs": "ships with every Python: `data=pydocs` takes the documentation, docstrings and comments of the one it "
    "runs on; the same version gives the same text",
    "wikitext103": "`data=wikitext103` reads it from the hub: Salesforce/wikitext, wikitext-103-raw-v1 (CC BY-SA 3.0)",
    "wikitext2": "`data=wikitext2` reads it from the hub: Salesforce/wikitext, wikitext-2-raw-v1 (CC BY-SA 3.0)",
}
"""Where the text of a data configuration can be had by everybody."""


@dataclass(frozen=True)
class Provenance:
    """Facts about a published study that are in no table.

    question: what the study asks; command, commit, dirty: of its publication; source: where to get texts that
    have no public name; probing: the passes that made the tables; notes: what else a reader has to know; files: names
    of the files that this publication wrote."""

    question: str
    command: str
    commit: str | None = None
    dirty: bool | None = None
    source: str = ""
    probing: list[Pass] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pass:
    """One pass of job=probe over some runs.

    settings: the settings of the pass; known_from: the source of these, if the pass itself did not record them.
    """

    runs: list[str]
    command: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    known_from: str | None = None


def without_paths(text: str) -> str:
    """Replace every absolute path in a text by its last part."""
    return ABSOLUTE.sub(r"\1", text)


PLACES = frozenset(
    (
        *(
            "results",
            "run",
            "runs",
            "out",
            "source",
            "from",
            "blocks",
            "file",
            "inputs",
            "weights",
            "include",
            "plan",
        ),
        *("path", "train_path", "gpt2_path", "tokenizer_path", "cache_dir", "searchpath"),
    )
)
"""Last words of the keys whose values are places, of this machine unless they are public names."""
_ITEM = re.compile(r"'[^']*'|\"[^\"]*\"|[^,\[\]]+")


def command_without_paths(command: str) -> str:
    """Return a command with the last part of every path in it: whatever a key that takes places has, and absolute ones.

    By words, not by what a path looks like: one may have blanks in it, start anywhere, or stand in a list.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # no command that a shell takes
        return without_paths(command)
    return shlex.join(map(_word_without_paths, words))


def _word_without_paths(word: str) -> str:
    key, sign, value = word.partition("=")
    if not sign:
        return _last_part(word)
    if key.rpartition(".")[2].lstrip("+~") in PLACES:
        return f"{key}={_ITEM.sub(lambda item: _last_of_quoted(item[0]), value)}"
    return f"{key}={_ITEM.sub(lambda item: without_paths(_last_part(item[0])), value)}"


def _last_of_quoted(item: str) -> str:
    """The last part of an item of a list, in its quotes."""
    mark = item[0] if item[0] in "'\"" else ""
    return f"{mark}{_name(item.strip(mark) if mark else item)}{mark}"


def _last_part(text: str) -> str:
    """The last part of what can only be a path, or the text."""
    return _name(text) if text.startswith(("/", "~", "./", "../")) else text


def _name(path: str) -> str:
    """The last part of a path; an address, and a place below the program's own results/, hide nothing."""
    public = "://" in path or (path.startswith("results/") and ".." not in path)
    return path if public else PurePosixPath(path).name or path


def write_provenance(folder: Path, provenance: Provenance) -> Path:
    """Write provenance.json atomically."""
    text = json.dumps(asdict(provenance), indent=1, ensure_ascii=False)
    return write_text(folder / FILE, text + "\n")


def read_provenance(folder: Path) -> Provenance | None:
    """Read provenance.json of a published folder, None without one. Raises ResultsError if it is damaged."""
    try:
        values = json.loads(read_text(folder, FILE))
        passes = [Pass(**one) for one in values.pop("probing", [])]
        provenance = Provenance(probing=passes, **values)
        texts = [
            provenance.question,
            provenance.command,
            *provenance.notes,
            *provenance.files,
            *(x for p in passes for x in p.runs),
        ]
        if not all(isinstance(x, str) for x in texts) or not all(
            isinstance(p.settings, dict) for p in passes
        ):
            raise ValueError("a text is no text")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ResultsError(
            f"{folder}: {FILE} cannot be read ({error}); publish the study from its runs"
        ) from error
    return provenance


def probing(results: Results, earlier: list[Provenance]) -> list[Pass]:
    """Return the probe passes of the runs, from their records or from a published folder.

    Raises ResultsError for tables of an interrupted pass.
    """
    if halves := interrupted(results):
        raise ResultsError(
            f"a pass of the probes of {listing(halves)} was interrupted, so its tables may be of two passes; "
            "run python run.py job=probe again"
        )
    passes: dict[str, Pass] = {}
    for row, text in zip(results.runs.itertuples(), records(results), strict=True):
        if text is None:
            continue
        try:
            one = _pass(row.run, json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResultsError(f"{row.experiment}/{row.run}: probes.json cannot be read ({error})") from error
        key = json.dumps({**asdict(one), "runs": None}, sort_keys=True)
        passes.setdefault(key, Pass(**{**asdict(one), "runs": []})).runs.extend(one.runs)
    kept = {run for (_, run) in results.exported}
    for published in earlier:
        for one in published.probing:
            if runs := [run for run in one.runs if run in kept]:
                passes[f"{len(passes)}"] = Pass(**{**asdict(one), "runs": runs})
    return list(passes.values())


def _pass(run: str, record: dict[str, Any]) -> Pass:
    command = record.get("command")
    return Pass(
        [run],
        None if command is None else command_without_paths(str(command)),
        dict(record["settings"]),
        record.get("commit"),
        record.get("dirty"),
    )


def origins(results: Results, source: str) -> list[str]:
    """Return the origin of each text, one sentence each. Raises ResultsError where it is not known."""
    drawn = results.of_tasks.runs["training_set"].unique()
    sets = ["data", "training_set", "validation_set", "test_set"]
    texts = results.of_text.runs[sets].drop_duplicates().itertuples(index=False)
    known, unknown = [], []
    for name, training, *scored in texts:
        public = PUBLIC.get(name)
        wikitext = name.startswith("wikitext")
        private = name not in PUBLIC or (wikitext and not training.endswith("-raw-v1 train"))
        others = [text for text in scored if wikitext and not text.startswith("wikitext-")]
        if public and (private or others):
            parts = ["training"] * (not private) + ["validation and test"] * (not others)
            public = f"{parts[0]}: {public}" if parts else None
        known += [f"{name}: {public}"] if public else []
        unknown += [(f"{name} trained on", training)] if private else []
        unknown += [(f"{name} scored on", text) for text in others]
    if unknown and not source:
        raise ResultsError(
            f"no public name is known for the text ({', '.join(map(' '.join, unknown))}); say where to get it: "
            "'source=\"what it is, where it comes from, its licence\"'"
        )
    known += [f"{text}: drawn by this program, as often as a run asks for" for text in drawn]
    return known + [f"{text}: {source}" for text in dict.fromkeys(text for _, text in unknown)]


# README.md: the question, the origin of the numbers, and commands to repeat them.

FINDINGS = "## Findings"
"""Heading of the section that people write and that a later publication keeps: an entry a question."""
PICTURES = (".png", ".svg")
FILES = {
    "README.md": "this page, written by `job=publish`",
    "configs.yaml": "the resolved configuration of every run: `common`, and in `runs` what each has beside it",
    "identities.json": "what each run's name is a hash of, laid out as configs.yaml is",
    "provenance.json": "this page's facts that stand in no table",
    "runs.parquet": "one row a run; columns in analysis/README.md",
    "metrics.parquet": "every row of the runs' metrics.csv",
    "documents.parquet": "every run's sum of -ln p and tokens by document of the scored splits",
    "answers.parquet": "every run's answers, right ones and sum of -ln p by position and difficulty",
    "lengths.parquet": "every run's answers, right ones and sum of -ln p on longer test sequences",
    "comparison.csv": "the first table of a report",
}


def readme(
    results: Results,
    provenance: Provenance,
    warnings: Iterable[str],
    said: Iterable[Answer] = (),
    written: str = "",
) -> str:
    """Return the page as Markdown.

    warnings: caveats to list in addition to the provenance's notes; said: answers; written: the section of findings
    that people wrote (`findings`), or nothing.
    """
    runs = results.runs
    parts = [
        f"# {_shown(runs['experiment'].iloc[0])}",
        f"**Question:** {_shown(provenance.question)}",
        "`analysis.load_results` reads this folder as it reads runs.",
        *_answers(said),
        written,
        "## Commands",
        *_commands(runs, provenance),
        "## Code and machine",
        *_machine(runs),
        "## Text",
        *_texts(results, provenance),
        *_settings(provenance.probing),
        "## What to know before believing it",
        _points([*provenance.notes, *warnings]) or "Nothing stands out.",
        "## Files",
        _points(
            [
                *_files(provenance),
                *(
                    f"`{name}`, `.txt`: a figure, its caption"
                    for name in provenance.files
                    if name.endswith(PICTURES)
                ),
            ]
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def findings(page: str) -> str:
    """Return the section of a page that people wrote, with its heading, or nothing."""
    section = re.search(rf"^{FINDINGS}$.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return section[0].strip() if section else ""


def _answers(said: Iterable[Answer]) -> Iterator[str]:
    for place, one in enumerate(said):
        if place == 0:
            yield "## Answer"
        if one.title:
            yield f"### {_shown(one.title)}"
        yield _points(one.sentences)


def _commands(runs: pd.DataFrame, provenance: Provenance) -> Iterator[str]:
    yield "Of an absolute path only the last part is left."
    for command, group in runs.groupby("command", sort=False, dropna=False):
        yield f"Training ({_runs(len(group))}):"
        yield _code(command if isinstance(command, str) else None)
    for one in provenance.probing:
        known = f", known from {_shown(one.known_from)} only" if one.known_from else ""
        state = f", commit {_commit(one.commit, one.dirty)}" if one.commit else ""
        yield f"Probing ({_runs(len(one.runs))}{state}{known}):"
        yield _code(one.command)
    at = f" (commit {_commit(provenance.commit, provenance.dirty)})" if provenance.commit else ""
    yield f"Publishing{at}:"
    yield _code(provenance.command)


def _machine(runs: pd.DataFrame) -> Iterator[str]:
    dirty = [None if pd.isna(value) else bool(value) for value in runs["dirty"]]
    state = [_commit(a, b) for a, b in zip(runs["commit"], dirty, strict=True)]
    memory = runs["memory_bytes"].map(
        lambda size: f"{size / 2**30:.1f} GiB" if pd.notna(size) else "unknown memory"
    )
    machine = runs["gpu"].fillna("no GPU") + "; " + runs["cpu"].fillna("unknown processor") + ", "
    machine += runs["cores"].astype(str) + " cores, " + memory + "; " + runs["threads"].astype(str)
    machine += " thread(s) a run; " + runs["platform"].fillna("unknown system")
    yield _points(
        [
            *(f"commit {text}: {_runs(count)}" for text, count in pd.Series(state).value_counts().items()),
            *(
                f"{_versions(text)}: {_runs(count)}"
                for text, count in runs["versions"].value_counts().items()
            ),
            *(f"{_shown(text)}: {_runs(count)}" for text, count in machine.value_counts().items()),
        ]
    )


def _texts(results: Results, provenance: Provenance) -> Iterator[str]:
    columns = [
        "training_set",
        "validation_set",
        "test_set",
        "tokenizer",
        "data_fingerprint",
        "train_split_tokens",
    ]
    rows = results.runs[columns].drop_duplicates().itertuples(index=False)
    described = (
        f"training: {_shown(row.training_set)} ({_tokens(row.train_split_tokens)} tokens of {_shown(row.tokenizer)}); "
        f"validation: {_shown(row.validation_set)}; test: {_shown(row.test_set)}; "
        f"fingerprint {_shown(row.data_fingerprint)}"
        for row in rows
    )
    yield _points(described)
    yield "Where to get it:"
    yield _points(origins(results, provenance.source))


def _settings(probing: list[Pass]) -> Iterator[str]:
    for one in probing:
        yield f"## Settings of the probes ({_runs(len(one.runs))})"
        yield (f"Known from {_shown(one.known_from)} only; the pass recorded none." if one.known_from else "")
        rows = (f"| `{_shown(key)}` | {_shown(json.dumps(value))} |" for key, value in one.settings.items())
        yield "| setting | value |\n|---|---|\n" + "\n".join(rows)


def _files(provenance: Provenance) -> Iterator[str]:
    for name in provenance.files:
        if name in FILES:
            yield f"`{name}`: {FILES[name]}"
        elif name.endswith(".parquet"):
            yield f"`{name}`: what the probes measured; columns in analysis/loading/"


def _versions(text: Any) -> str:
    try:
        return ", ".join(f"{_shown(name)} {_shown(version)}" for name, version in json.loads(text).items())
    except (ValueError, TypeError, AttributeError):
        return f"versions {_shown(text)}"


def _commit(commit: Any, dirty: bool | None) -> str:
    state = {True: "with uncommitted changes", False: "clean", None: "state unknown"}[dirty]
    return f"{_shown(commit)[:40]}, {state}" if isinstance(commit, str) else "not recorded"


def _tokens(count: Any) -> str:
    return "unknown" if pd.isna(count) else engineering(count)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _code(line: str | None) -> str:
    """An indented block: nothing in the line can end it."""
    return "Not recorded." if line is None else f"    {' '.join(line.split())}"


def _points(lines: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines)


def _shown(value: Any) -> str:
    """Escape a value from a result file as text on one line, without markup or HTML."""
    return re.sub(r"([`<>|\[\]*\\])", r"\\\1", " ".join(str(value).split()))


# Configurations and identities of all runs, in two files.
#
# Both have `common`, what all runs share, and `runs`, that in which each run differs; a section that several runs have
# alike stands once, in `parts`, and the runs have its name. Merged recursively, they are a run's config.yaml, except
# that folders of the machine are cut to their last part, and its identity: as JSON with sorted keys and no spaces, its
# SHA-256 gives the run's name (its first 12 digits). Earlier publications have no `parts`, and their identities.json
# has every run's identity whole.

CONFIGS, IDENTITIES = "configs.yaml", "identities.json"
_HEAD = (
    "# `common` is the same for all runs, `runs` is what each has beside it (and over it, node by node); `model-2` is\n"
    "# the section of this name in `parts`.\n"
)
Tree = dict[str, Any]


def gather(results: Results) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Return run -> configuration and run -> identity of all runs, from run folders or published files.

    Raises ResultsError where a run has none that can be read.
    """
    stored = {folder: read_configurations(folder) for folder in dict.fromkeys(results.exported.values())}
    configs, identities, unreadable = {}, {}, []
    for home, row in zip(results.run_folders(), results.runs.itertuples(), strict=True):
        try:
            if home is None:
                tree_pair = _stored(stored[results.exported[row.experiment, row.run]], row.run)
            else:
                tree_pair = _load(home, "config.yaml"), _load(home, "identity.json")
        except Unreadable as error:
            unreadable.append(f"{row.experiment}/{row.run} ({error})")
            continue
        configs[row.run], identities[row.run] = tree_pair
    if unreadable:
        raise ResultsError(
            f"no configuration or identity of {listing(unreadable, limit=3)}: a study is published from the folders of "
            f"its runs, or from a published folder with {CONFIGS} and {IDENTITIES}"
        )
    return configs, identities


class Unreadable(Exception):
    """Raised for a configuration or identity file that is missing or damaged."""


def _load(folder: Path, name: str) -> Tree:
    """The mapping in a YAML or JSON file of a folder. Raises Unreadable."""
    try:
        text = read_text(folder, name)
        value = json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=_Plain)
    except FileNotFoundError:
        raise Unreadable(f"no {name}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unreadable(f"{name} cannot be read: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise Unreadable(f"{name} is nested too deep") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{name} does not hold a mapping")
    return value


class _Plain(yaml.SafeLoader):
    """YAML loader without aliases, with which a few lines can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it has aliases, which no run writes")
        return super().compose_node(parent, index)


def _stored(published: tuple[dict[str, Tree], dict[str, Tree]], run: str) -> tuple[Tree, Tree]:
    """A run's two mappings among those of a published folder. Raises Unreadable."""
    for rows, name in zip(published, (CONFIGS, IDENTITIES), strict=True):
        if not isinstance(rows.get(run), dict):
            raise Unreadable(f"not in {name}")
    return published[0][run], published[1][run]


def read_configurations(folder: Path) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Read run -> configuration and run -> identity of a published folder; empty where a file cannot be read."""
    try:
        configs = _whole(_load(folder, CONFIGS))
    except (Unreadable, KeyError, AttributeError, TypeError):
        configs = {}
    try:
        file = _load(folder, IDENTITIES)
        identities = _whole(file) if "runs" in file else file
    except (Unreadable, KeyError, AttributeError, TypeError):
        identities = {}
    return configs, identities


def write_configurations(folder: Path, configs: dict[str, Tree], identities: dict[str, Tree]) -> list[Path]:
    """Write configs.yaml and identities.json into a folder; returns their paths."""
    shared = _shared({run: _portable(config) for run, config in configs.items()})
    # leaves in one line, or the settings of 198 runs take 200 kB
    text = yaml.safe_dump(shared, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return [
        write_text(folder / CONFIGS, _HEAD + text),
        write_text(folder / IDENTITIES, _lines(_shared(identities))),
    ]


def _whole(file: Tree) -> dict[str, Tree]:
    """Return run -> tree of what `_shared` made."""
    parts = file.get("parts", {})

    def section(key: str, value: Any) -> Any:
        return parts.get(value, value) if isinstance(value, str) and value.startswith(f"{key}-") else value

    named = {
        run: {key: section(key, value) for key, value in rest.items()} for run, rest in file["runs"].items()
    }
    return {run: joined(file["common"], rest) for run, rest in named.items()}


def _shared(trees: dict[str, Tree]) -> Tree:
    """Return `common`, `parts` (if there are any) and `runs` of run -> tree; `_whole` is the inverse."""
    same = common(list(trees.values()))
    rest = {run: difference(same, tree) for run, tree in trees.items()}
    alike: dict[tuple[str, str], list[Tree]] = {}  # the sections of equal text
    for tree_rest in rest.values():
        for key, value in tree_rest.items():
            if isinstance(value, dict):
                alike.setdefault((key, _text(value)), []).append(value)
    names: dict[tuple[str, str], str] = {}
    parts: Tree = {}
    for (key, text), sections in alike.items():
        if len(sections) > 1:
            name = f"{key}-{1 + sum(other == key for other, _ in names)}"
            names[key, text], parts[name] = name, sections[0]
    runs = {
        run: {
            key: names.get((key, _text(value)), value) if isinstance(value, dict) else value
            for key, value in tree_rest.items()
        }
        for run, tree_rest in rest.items()
    }
    return {"common": same, **({"parts": parts} if parts else {}), "runs": runs}


def common(trees: list[Tree]) -> Tree:
    """Return the part of nested dictionaries that is equal in all of them, node by node."""
    first, out = trees[0], {}
    for key, value in first.items():
        others = [tree.get(key) for tree in trees]
        if not all(key in tree for tree in trees):
            continue
        if all(isinstance(other, dict) for other in others):
            out[key] = common(others)
        elif all(_same(value, other) for other in others):
            out[key] = value
    return out


def difference(shared: Tree, tree: Tree) -> Tree:
    """Return the part of a tree that the shared part does not have; `joined` is the inverse."""
    out = {}
    for key, value in tree.items():
        if key not in shared:
            out[key] = value
        elif isinstance(value, dict) and (rest := difference(shared[key], value)):
            out[key] = rest
    return out


def joined(shared: Tree, rest: Tree) -> Tree:
    """Merge a shared part and the rest into one tree."""
    out = dict(shared)
    for key, value in rest.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = joined(out[key], value) if nested else value
    return out


def _same(a: Any, b: Any) -> bool:
    """Python takes 1, 1.0 and True for equal; a configuration does not."""
    return _text(a) == _text(b)


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)


def _lines(shared: Tree) -> str:
    """Return JSON with a line for what is common, for every part and for every run."""
    blocks = [f'"common": {_hashed(shared["common"])}']
    for name in ("parts", "runs"):
        rows = ",\n".join(
            f"{json.dumps(key)}: {_hashed(value)}" for key, value in shared.get(name, {}).items()
        )
        blocks += [f'"{name}": {{\n{rows}\n}}'] if rows else []
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _hashed(identity: Tree) -> str:
    """Return the text whose hash is a run's name."""
    return json.dumps(identity, sort_keys=True, separators=(",", ":"))


def _portable(value: Any, key: str = "") -> Any:
    """A configuration without this machine's folders (of a path, its last part), in the order of its keys."""
    if isinstance(value, dict):
        return {inner: _portable(value[inner], str(inner)) for inner in sorted(value, key=str)}
    if isinstance(value, list):
        return [_portable(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return _name(value) if key in PLACES else _last_part(value)

"""README.md of a published study: its question, the origin of its numbers, and commands to repeat it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from analysis.comparing.answer import Answer
from analysis.loading.results import Results
from analysis.publishing.provenance import Pass, Provenance, origins
from analysis.units import engineering

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
        f"# {_text(runs['experiment'].iloc[0])}",
        f"**Question:** {_text(provenance.question)}",
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
    found = re.search(rf"^{FINDINGS}$.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[0].strip() if found else ""


def _answers(said: Iterable[Answer]) -> Iterator[str]:
    for place, one in enumerate(said):
        if place == 0:
            yield "## Answer"
        if one.title:
            yield f"### {_text(one.title)}"
        yield _points(one.sentences)


def _commands(runs: pd.DataFrame, provenance: Provenance) -> Iterator[str]:
    yield "Of an absolute path only the last part is left."
    for command, group in runs.groupby("command", sort=False, dropna=False):
        yield f"Training ({_runs(len(group))}):"
        yield _code(command if isinstance(command, str) else None)
    for one in provenance.probing:
        known = f", known from {_text(one.known_from)} only" if one.known_from else ""
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
            *(f"{_text(text)}: {_runs(count)}" for text, count in machine.value_counts().items()),
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
        f"training: {_text(row.training_set)} ({_tokens(row.train_split_tokens)} tokens of {_text(row.tokenizer)}); "
        f"validation: {_text(row.validation_set)}; test: {_text(row.test_set)}; "
        f"fingerprint {_text(row.data_fingerprint)}"
        for row in rows
    )
    yield _points(described)
    yield "Where to get it:"
    yield _points(origins(results, provenance.source))


def _settings(probing: list[Pass]) -> Iterator[str]:
    for one in probing:
        yield f"## Settings of the probes ({_runs(len(one.runs))})"
        yield f"Known from {_text(one.known_from)} only; the pass recorded none." if one.known_from else ""
        rows = (f"| `{_text(key)}` | {_text(json.dumps(value))} |" for key, value in one.settings.items())
        yield "| setting | value |\n|---|---|\n" + "\n".join(rows)


def _files(provenance: Provenance) -> Iterator[str]:
    for name in provenance.files:
        if name in FILES:
            yield f"`{name}`: {FILES[name]}"
        elif name.endswith(".parquet"):
            yield f"`{name}`: what the probes measured; columns in analysis/loading/"


def _versions(text: Any) -> str:
    try:
        return ", ".join(f"{_text(name)} {_text(version)}" for name, version in json.loads(text).items())
    except (ValueError, TypeError, AttributeError):
        return f"versions {_text(text)}"


def _commit(commit: Any, dirty: bool | None) -> str:
    state = {True: "with uncommitted changes", False: "clean", None: "state unknown"}[dirty]
    return f"{_text(commit)[:40]}, {state}" if isinstance(commit, str) else "not recorded"


def _tokens(count: Any) -> str:
    return "unknown" if pd.isna(count) else engineering(count)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _code(line: str | None) -> str:
    """An indented block: nothing in the line can end it."""
    return "Not recorded." if line is None else f"    {' '.join(line.split())}"


def _points(lines: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines)


def _text(value: Any) -> str:
    """Escape a value from a result file as text on one line, without markup or HTML."""
    return re.sub(r"([`<>|\[\]*\\])", r"\\\1", " ".join(str(value).split()))

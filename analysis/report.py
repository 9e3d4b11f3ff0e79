"""One self-contained HTML page over any number of runs."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import units
from analysis.comparison import compare, interval_text, ranking_metric
from analysis.errors import ResultsError
from analysis.files import write_atomically, write_text
from analysis.gallery import Exhibit, exhibits
from analysis.notices import notices
from analysis.results import PathLike, Results, load_results
from analysis.style import looks, seeds_text

TEMPLATES = Path(__file__).parent / "templates"


def write_report(runs: PathLike | Iterable[PathLike] | Results, out: PathLike | None = None) -> Path:
    """Write index.html, runs.parquet, metrics.parquet, comparison.csv and figures/; returns the page's path.

    runs: a run, experiment or results folder, a list of them, or loaded Results.
    out: the folder to write into, by default ``<runs>/report``; needed where runs is not one folder.
    The page needs no other file and no network. Raises ResultsError if there is nothing complete to report.
    """
    folder = _target(runs, out)
    results = runs if isinstance(runs, Results) else load_results(runs)
    folder.mkdir(parents=True, exist_ok=True)
    shown = exhibits(results, folder / "figures")
    table = compare(results.runs)
    results.to_parquet(folder)
    write_atomically(folder / "comparison.csv", lambda path: table.to_csv(path, index=False))
    return write_text(folder / "index.html", render(results, table, shown))


def _target(runs: object, out: PathLike | None) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(runs, str | os.PathLike):
        return Path(runs) / "report"
    raise ResultsError("a report over several folders needs a place: give out=FOLDER")


def render(results: Results, table: pd.DataFrame, shown: list[Exhibit]) -> str:
    """The page's HTML; every text from a result file is escaped by the template."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": units.number,
        "whole": units.whole,
        "engineering": units.engineering,
        "memory": units.memory,
        "percent": units.percent,
        "duration": units.duration,
        "text": _text,
        "sortable": _sortable,
    }
    encoded = base64.b64encode(table.to_csv(index=False).encode()).decode()
    return environment.get_template("report.html.j2").render(
        title=_title(results.runs),
        summary=_summary(results.runs, table["label"]),
        notices=notices(results),
        metric=ranking_metric(results.runs),
        models=list(table.itertuples(index=False)),
        styles=looks(zip(table["label"], table["color"], strict=True)),
        interval=interval_text,
        exhibits=shown,
        runs=[_run_details(row) for row in results.runs.itertuples(index=False)],
        machines=_machines(results.runs),
        versions=_versions(results.runs),
        missing=_missing(results.runs, shown),
        comparison_csv=f"data:text/csv;base64,{encoded}",
    )


def _sortable(value: object) -> str:
    """What a column sorts by: the number at full precision, empty where it is missing."""
    return "" if pd.isna(value) else repr(float(value))


def _text(value: object, missing: str = units.MISSING) -> str:
    return missing if pd.isna(value) else str(value)


def _title(runs: pd.DataFrame) -> str:
    return units.listing(runs["experiment"].unique(), limit=4)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _summary(runs: pd.DataFrame, labels: pd.Series) -> str:
    """One paragraph: what was compared on what text, trained how, tested how."""

    def values(column: str, show: Callable = str) -> str:
        return units.listing(show(value) for value in runs[column].dropna().unique())

    models = units.listing(labels)
    verb = "compared over" if runs["label"].nunique() > 1 else "in"
    return (
        f"{models}, {verb} {_count(len(runs), 'run')} ({seeds_text(runs['seed'].dropna())}), "
        f"trained on {values('training_set')} ({values('train_split_tokens', units.engineering)} tokens; "
        f"tokenizer {values('tokenizer')} with {values('vocab_size', units.whole)} entries) "
        f"for at most {values('planned_steps', units.whole)} steps of "
        f"{values('tokens_per_step', units.whole)} tokens, context {values('seq_len', units.whole)}. "
        f"Tested on the test split of {values('test_set')} with the weights of the lowest validation loss: "
        f"every token of it scored once, stride {values('test_stride', units.whole)}.{_yardsticks(runs)}"
    )


def _yardsticks(runs: pd.DataFrame) -> str:
    """How equal the models are, and what loss takes no model: each where it is known."""
    found, sizes = "", runs["parameters_non_embedding"].dropna()
    if sizes.nunique() > 1:
        spread = f"{sizes.max() / sizes.min() - 1:.1%}"
        found += f" Parameters beside the embedding: {sizes.min():,} to {sizes.max():,}, {spread} apart."
    entropy = runs["unigram_entropy"].dropna()
    if len(entropy):
        values = units.listing(f"{value:.3f}" for value in sorted(entropy.unique()))
        found += (
            f" Knowing only how frequent each token of the training text is would cost {values} nats/token."
        )
    return found


def _run_details(row) -> dict:
    folder = Path(row.folder)
    try:
        config = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        config = None
    return {"row": row, "config": config, "blocks": _blocks(row.blocks)}


def _blocks(text: str) -> str:
    """The blocks of a run as "F attention, S timelines"."""
    try:
        blocks = json.loads(text)
        return ", ".join(f"{block['letter']} {block['title']}" for block in blocks)
    except (TypeError, ValueError, KeyError):
        return units.MISSING


def _machines(runs: pd.DataFrame) -> list:
    keys = ["gpu", "cpu", "cores", "threads", "memory_bytes", "platform"]
    counted = runs.groupby(keys, dropna=False).size().reset_index(name="n_runs")
    return list(counted.sort_values("n_runs", ascending=False).itertuples(index=False))


def _versions(runs: pd.DataFrame) -> list[dict]:
    trees = {"True": "uncommitted changes", "False": "clean"}
    counted = runs.assign(dirty=runs["dirty"].astype("str"))
    counted = counted.groupby(["commit", "dirty", "versions"], dropna=False).size().reset_index(name="n_runs")
    return [
        {"row": row, "versions": _versions_text(row.versions), "tree": trees.get(row.dirty, "not recorded")}
        for row in counted.sort_values("n_runs", ascending=False).itertuples(index=False)
    ]


def _versions_text(text: str) -> str:
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
    except (TypeError, ValueError, AttributeError):
        return units.MISSING


def _missing(runs: pd.DataFrame, exhibits: list[Exhibit]) -> list[str]:
    found = [f"Figure “{exhibit.title}”: {exhibit.missing}." for exhibit in exhibits if exhibit.missing]
    if runs["mfu"].isna().any():
        unknown = int(runs["mfu"].isna().sum())
        found.append(f"MFU of {unknown} of {_count(len(runs), 'run')}: not recorded.")
    if runs["peak_memory_bytes"].isna().any():
        found.append(
            f"Peak memory of {_count(int(runs['peak_memory_bytes'].isna().sum()), 'run')}: not recorded."
        )
    if runs["gpu"].isna().all():
        found.append("Speed on a GPU: none of these runs used one.")
    return found

"""The page of a verdict, index.html and verdict.md in results/NAME/verdict, with what an hour cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis import files
from analysis.caveats import place
from analysis.files import engineering, listing, refuse_link, whole, write_csv, write_text
from analysis.loading.results import Results
from analysis.publishing import without_paths
from analysis.report.page import environment
from analysis.verdict_page.findings import (
    BETTER,
    EQUAL,
    FOLDER,
    LEAD,
    METHOD,
    RECORD,
    TABLES,
    TESTS,
    UNLEARNED,
    WORSE,
    Finding,
    VerdictTables,
    broken_sentences,
    contract_sentence,
    count_findings,
    learned_findings,
    probe_sentences,
    read_verdict_tables,
    speed_findings,
)

# Limitations: what the runs and measurements cannot tell.


def limitations(tables: VerdictTables, runs: pd.DataFrame | None) -> list[str]:
    """Return a sentence for every limitation of this verdict; runs: those trained for it, if any."""
    limits = []
    if runs is not None and len(runs):
        sizes = listing(whole(value) for value in sorted(runs["parameters_non_embedding"].unique()))
        contexts = listing(whole(value) for value in sorted(runs["seq_len"].unique()))
        budgets = listing(engineering(value) for value in sorted(runs["tokens"].unique()))
        limits = [
            f"Larger models: these have {sizes} parameters beside the embedding.",
            f"Longer training: each run saw {budgets} tokens; more may change the order.",
            f"Longer contexts: trained with {contexts} tokens.",
            f"Losses elsewhere: trained on {listing(place(runs).unique())}; another processor rounds "
            "differently, which acts like other seeds: a difference may appear or disappear.",
        ]
        if runs["chance"].isna().all():
            limits.append("Recall, state tracking and other abilities: the models were trained on text only.")
    if not tables.speeds.empty:
        lengths = listing(whole(value) for value in sorted(tables.speeds["tokens"].unique()))
        machines = listing(tables.speeds["machine"].unique())
        limits.append(
            f"Speed elsewhere: measured at {lengths} tokens, batch 1, on {machines}, in one process; another process "
            "may give speeds some per cent outside these intervals."
        )
        if (tables.speeds["device"] == "cpu").all():
            limits.append("Speed on a GPU: unmeasured.")
    return [*limits, "Other options: the block ran with its default options."]


# The page.

_HEADINGS = {
    BETTER: "Better",
    WORSE: "Worse",
    LEAD: "Leads, not verdicts",
    EQUAL: "Equal, or not shown to differ",
    UNLEARNED: "Learned by neither",
}


class ComparisonFindings(NamedTuple):
    """Findings beside one model, by heading."""

    peer: str
    groups: dict[str, list[str]]


class Page(NamedTuple):
    """The content of the page: sentences first, then the tables behind them.

    tests: by which test losses and accuracies were found to differ; "" where none was compared; inside: what probes
    found, "" as method where nothing was probed.
    """

    name: str
    title: str
    source: str
    contracts: str
    broken: list[str]
    beside: list[ComparisonFindings]
    tests: str
    inside: list[str]
    method: str
    limitations: list[str]
    tables: VerdictTables
    report: bool


def gather(tables: VerdictTables, results: Results | None) -> Page:
    """Gather the page; results: the runs of the verdict, None where nothing was trained."""
    learned = [] if results is None else list(learned_findings(tables, results))
    probed = probe_sentences(tables, results)
    findings = [*learned, *count_findings(tables), *speed_findings(tables)]
    block = tables.record["block"]
    return Page(
        tables.name,
        str(block.get("title", "")),
        str(block.get("source", "")),
        contract_sentence(tables),
        broken_sentences(tables.broken_contracts),
        [ComparisonFindings(peer, _grouped(findings, peer)) for peer in tables.peers] if findings else [],
        TESTS if learned else "",
        probed,
        METHOD if probed else "",
        limitations(tables, None if results is None else results.runs),
        tables,
        results is not None,
    )


def _grouped(findings: list[Finding], peer: str) -> dict[str, list[str]]:
    return {
        heading: [one.text for one in findings if one.peer == peer and one.side == side]
        for side, heading in _HEADINGS.items()
    }


def write_verdict(folder: Path, results: Results | None) -> Path:
    """Write the page and its Markdown into results/NAME/verdict, atomically; returns the page's path.

    folder: results/NAME. Raises ResultsError where there is no verdict, it is damaged, or its folder is a link.
    """
    page = gather(read_verdict_tables(folder), results)
    refuse_link(folder / FOLDER)
    return _write(folder / FOLDER, page)


def publish_verdict(folder: Path, results: Results, published: Path) -> Path:
    """Write a verdict's tables and its page into the published folder of its runs; returns the page's path.

    folder: results/NAME; published: results/published/NAME. Nothing in it leads to this machine's folders or to a
    report, which is not published. Raises ResultsError as `write_verdict` does.
    """
    tables = read_verdict_tables(folder)
    reasons = tables.contracts["reason"].map(without_paths)
    tables = tables._replace(contracts=tables.contracts.assign(reason=reasons))
    place = published / FOLDER
    refuse_link(place)
    place.mkdir(exist_ok=True)
    for name in TABLES:
        write_csv(getattr(tables, name), place / f"{name}.csv")
    write_text(place / RECORD, json.dumps(tables.record, indent=1) + "\n")
    return _write(place, gather(tables, results)._replace(report=False))


def _write(place: Path, page: Page) -> Path:
    write_text(
        place / "verdict.md", environment(autoescape=False).get_template("verdict.md.j2").render(page=page)
    )
    jinja = environment(autoescape=True)
    return write_text(
        place / "index.html", jinja.get_template("verdict.html.j2").render(page=page, shown=_cell_text)
    )


def _cell_text(value: object) -> str:
    """A cell of a table: counts whole, other numbers with four digits."""
    if not isinstance(value, float):
        return str(value)
    if pd.isna(value):
        return files.MISSING
    return files.whole(value) if value == round(value) else f"{value:.4g}"


def lines(page_folder: Path) -> list[str]:
    """Return the sentences of a written verdict, for the terminal."""
    return (page_folder / "verdict.md").read_text(encoding="utf-8").splitlines()

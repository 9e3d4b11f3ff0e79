"""The tables of a small report in every format, and figures of published studies that pretended runs cannot have."""

import re
from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.said import digest
from support.seen_figures import totals
from support.seen_pages import table_lines, tables

from analysis import gallery, load_results, write_report

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"
RECORDED = Path(__file__).with_name("recorded")
PARTS = {
    "text": (
        ["quickstart"],
        {"transformer": (1, 2), "hypergraph": (1,), "nsa": (1, 2), "mesanet": (2,), "mom": (2,)},
        "sinks sink_maps sink_maps_mean attention_profile gates selection selected_maps routing_map "
        "routing_choices routed_sentence timeline_tokens mutual_information recurrence solver inference_batch_8",
    ),
    "residuals": (
        ["residual_rates", "residual_rates_24"],
        {f"transformer{scheme}": (1, 2) for scheme in ("", " hc", " shc")},
        "composite_gain gradient_depth stream_pca singular_values learning_rates",
    ),
    "tasks": (
        ["papers_recall", "papers_orthgsa_length", "papers_path_flip_flop"],
        None,
        "task_accuracy task_curves task_difficulty task_positions task_state",
    ),
}
"""Studies, the seeds of their models, and the figures; tests/analysis/figures has the others."""


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
def test_figures_of_published_studies_draw_what_they_drew(name):
    studies, wanted, figures = PARTS[name]
    results = load_results([PUBLISHED / study for study in studies])
    if wanted is not None:
        keys = zip(results.runs["name"], results.runs["seed"], strict=True)
        results = results.part(pd.Series([seed in wanted.get(one, ()) for one, seed in keys]))
    lines = []
    for one in figures.split():
        figure, _, table = gallery.draw(one, results)
        lines += [f"# {one}", *totals(figure), *digest(table)]
    recorded.check(RECORDED / f"{name}.txt", lines, absolute=1e-9)


def markdown_tables(text: str) -> list[list[list[str]]]:
    parts = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [
        [
            [re.sub(r"\\(.)", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in part.splitlines()
        ]
        for part in parts
    ]


def test_a_small_report_has_its_tables_in_every_format(quickstart, monkeypatch):
    entries = [one for one in gallery.listed() if one.name in ("comparison", "scaling")]
    monkeypatch.setattr(gallery, "listed", lambda: entries)
    page = write_report(quickstart)
    html = page.read_text(encoding="utf-8")
    of_page = tables(html)
    of_markdown = markdown_tables((page.parent / "report.md").read_text(encoding="utf-8"))
    assert [[[text for text, _ in row] for row in table[1:]] for table in of_page] == [
        table[2:] for table in of_markdown
    ]
    lines = list(table_lines(html))
    for path in sorted((page.parent / "tables").glob("*.csv")):
        lines += [f"# {path.name}", *digest(pd.read_csv(path).drop(columns="folder", errors="ignore"))]
    body = (page.parent / "tables" / "comparison.tex").read_text(encoding="utf-8").split(r"\midrule")[1]
    assert [line.split(" & ")[0] for line in body.splitlines() if line.endswith(r"\\")] == [
        re.sub("_", r"\\_", row[0][0]).replace("‡", r"\ensuremath{\ddagger}") for row in of_page[0][1:]
    ]
    files = (path.relative_to(page.parent).as_posix() for path in page.parent.rglob("*") if path.is_file())
    lines.append(f"files: {', '.join(sorted(files))}")
    recorded.check(RECORDED / "tables.txt", lines, absolute=1e-9)

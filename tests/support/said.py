"""All that is said of a comparison, as lines of text: tables, answers, notices, what a report tells of its runs."""

from collections.abc import Iterator

import pandas as pd

from analysis import gallery
from analysis.caveats import caveats, conditions
from analysis.comparing.tables import compare, comparison_text, order_metric, with_final_validation
from analysis.comparing.verdicts import answers, families
from analysis.files import NoData
from analysis.loading.results import Results
from analysis.report import content, latex
from analysis.report.columns import (
    BALANCE,
    QUALITY,
    comparison,
    layouts,
    rows,
    run_fields,
    sort_key,
    task_page,
)
from support.recorded import flat
from support.seen_figures import figure_lines


def said_lines(results: Results, baseline: str | None = None) -> Iterator[str]:
    """Everything but figures, samples and the page around it."""
    runs = with_final_validation(results)
    metric = order_metric(runs)
    found = families(runs, metric, baseline)
    yield from comparison_text(results, baseline).splitlines()
    for family in found:
        yield f"{family.title}, by {family.metric}:"
        yield from flat(known(family.table), "family")
    for answer in answers(found, results.table("documents")):
        yield f"answer {answer.title!r}"
        yield from (f"  {sentence}" for sentence in answer.sentences)
    yield from (f"notice: {text}" for text in caveats(results))
    yield content.title(runs)
    table = compare(runs, baseline)
    yield content.paragraph(runs, table["label"])
    yield from digest(table)
    yield f"speeds: {conditions(runs)}"
    for of_tasks in (False, True):
        part = table[table["task"].notna() == of_tasks]
        if len(part):
            yield from table_lines(comparison(metric, of_tasks), part)
            yield from latex.table(comparison(metric, of_tasks), rows(part), "caption").splitlines()
    yield from table_lines(run_fields(runs), runs.assign(anchor=""))
    yield from flat(known(content.machines(runs)), "machines")
    yield from flat(known(content.versions(runs)), "versions")
    yield from (f"missing: {text}" for text in content.missing(runs, []))
    page = task_page(results, baseline)
    if len(page.rows):
        yield page.note
        yield from table_lines(page.fields, page.rows)
        yield from flat(known(page.long), "tasks")
    named = layouts(results.of_text)
    for name, fields, part in (("quality", QUALITY, named.quality), ("balance", BALANCE, named.balance)):
        if len(part):
            yield name
            yield from table_lines(fields, part)
    yield f"balance: {named.balance_note}"


def known(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with None for all that is missing, of which pandas has several kinds, a version each."""
    return frame.astype("object").where(frame.notna(), None)


def table_lines(fields: tuple, frame: pd.DataFrame) -> Iterator[str]:
    """A table of a page: its headings with unit and note, its cells, and what they are sorted by."""
    yield " | ".join(
        f"{field.heading} [{field.unit}] ({field.kind}) {field.note}".strip() for field in fields
    )
    for row in rows(frame):
        cells = (f"{field.show(row)}{f' <{sort_key(field, row)}>' if field.sort else ''}" for field in fields)
        yield "  " + " | ".join(cells)


def drawn_lines(results: Results, *names: str) -> Iterator[str]:
    """Figures by name: what is drawn, the caption, and the table behind it."""
    for name in names:
        yield f"# figure {name}"
        try:
            figure, caption, table = gallery.draw(name, results)
        except NoData as reason:
            yield f"none: {reason}"
            continue
        yield caption
        yield from figure_lines(figure)
        yield from digest(table)


def digest(table: pd.DataFrame) -> Iterator[str]:
    """A figure's table in a line a column: of numbers their count and sums, of words each once with how often."""
    yield f"table of {len(table)} rows: {', '.join(table.columns)}"
    for name in table:
        if not pd.api.types.is_numeric_dtype(table[name]) or table[name].dtype == bool:
            counts = table[name].fillna("none").astype("str").value_counts(sort=False)
            yield f"  {name}: {', '.join(f'{value} {count}' for value, count in counts.items())}"[:400]
        else:
            values = table[name].astype("float64")
            places = pd.Series(range(1, len(values) + 1), index=values.index) ** 0.5
            sums = {"n": int(values.notna().sum()), "sum": values.sum(), "weighted": (values * places).sum()}
            yield f"  {name}: {' '.join(flat(sums))}"

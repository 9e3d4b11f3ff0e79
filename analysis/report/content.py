"""The content of a report in any format, gathered once from the results: sentences, figures, continuations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis import files
from analysis.caveats import caveats, conditions
from analysis.comparing.equal_terms import legend
from analysis.comparing.tables import (
    AHEAD,
    BEHIND,
    BETTER,
    FINAL,
    NAMES,
    WORSE,
    compare,
    order_metric,
    with_final_validation,
)
from analysis.comparing.verdicts import Answer, answers, families
from analysis.files import NoData
from analysis.gallery import ReportFigure, draw_figures, require, selection
from analysis.loading.results import Results, records
from analysis.plotting.style import seeds_text, series_styles
from analysis.report.columns import (
    Field,
    Layouts,
    TaskPage,
    brief,
    comparison,
    harness,
    layouts,
    run_fields,
    task_page,
)

# Continuations of the compared models after the same prompts, side by side.

KEYS = ["prompt", "temperature", "sample_seed"]


class Continuation(NamedTuple):
    """Generated text of one run: the model's label, the run's seed, the text, and the decoding speed."""

    label: str
    seed: str
    text: str
    speed: str


class Prompt(NamedTuple):
    """A prompt with its sampling settings and the continuation of each run."""

    prompt: str
    sampling: str
    continuations: list[Continuation]


class Samples(NamedTuple):
    """All prompts in the order asked; missing: the reason if there are none; without: labels without a sample."""

    prompts: list[Prompt]
    missing: str = ""
    without: tuple[str, ...] = ()


def samples(results: Results, order: Sequence[str]) -> Samples:
    """Group the probe table `samples` by prompt. order: labels as the comparison has them, best first."""
    try:
        require("table.samples", results)
    except NoData as reason:
        return Samples([], missing=str(reason))
    table = results.table("samples").drop_duplicates([*KEYS, "label", "seed"])
    place = {label: position for position, label in enumerate(order)}
    table = table.assign(place=table["label"].map(place)).sort_values(["place", "seed"], kind="stable")
    asked = table[KEYS].drop_duplicates().sort_index()  # the order of the files, not of the models
    prompts = [_prompt(key, table) for key in asked.itertuples(index=False)]
    return Samples(prompts, without=tuple(label for label in order if label not in set(table["label"])))


def _prompt(key: tuple, table: pd.DataFrame) -> Prompt:
    same = pd.Series(True, index=table.index)
    for name in KEYS:
        value = getattr(key, name)
        same &= table[name].isna() if pd.isna(value) else (table[name] == value).fillna(False)
    rows = table[same].itertuples(index=False)
    return Prompt(_printable(key.prompt), _sampling(key), [_continuation(row) for row in rows])


def _sampling(key: tuple) -> str:
    if pd.isna(key.temperature):
        return "how it was sampled is not recorded"
    if key.temperature == 0:
        return "temperature 0: the most likely token each time"
    return f"temperature {key.temperature:g}, sampling seed {files.whole(key.sample_seed)}"


def _continuation(row: tuple) -> Continuation:
    speed = files.engineering(row.tokens_per_second)
    return Continuation(row.label, files.whole(row.seed), _printable(row.text), speed)


def _printable(text: object) -> str:
    return files.MISSING if pd.isna(text) else files.pictured(str(text))


# Sentences about the runs: title, paragraph, machines, versions, missing parts.


def title(runs: pd.DataFrame) -> str:
    """Return the title of a report: the names of its experiments."""
    return files.listing(runs["experiment"].unique(), limit=4)


def count(n: int, what: str) -> str:
    """Format a count as "1 run" or "2 runs"."""
    return f"{n} {what}{'s' * (n != 1)}"


def paragraph(runs: pd.DataFrame, labels: pd.Series) -> str:
    """Summarise models, text, training and testing in one paragraph."""

    def values(column: str, show: Callable = str) -> str:
        return files.listing(show(value) for value in runs[column].dropna().unique())

    models = files.listing(labels)
    verb = "compared over" if runs["label"].nunique() > 1 else "in"
    return (
        f"{models}, {verb} {count(len(runs), 'run')} ({seeds_text(runs['seed'].dropna())}), "
        f"trained on {values('training_set')} ({_training_text(runs, values)}) "
        f"for at most {values('planned_steps', files.whole)} steps of "
        f"{values('tokens_per_step', files.whole)} tokens, context {values('seq_len', files.whole)}. "
        f"{_tested(runs)}{_yardsticks(runs)}"
    )


def _training_text(runs: pd.DataFrame, values: Callable) -> str:
    """The size of the training text and its tokenizer, or what a synthetic task has instead."""
    entries = values("vocab_size", files.whole)
    if runs["train_split_tokens"].isna().all():
        return f"sequences drawn anew for every step, of {entries} different tokens"
    return (
        f"{values('train_split_tokens', files.engineering)} tokens; tokenizer {values('tokenizer')} with "
        f"{entries} entries"
    )


def _tested(runs: pd.DataFrame) -> str:
    """Describe how the runs were tested, or say that they were not and which loss compares them."""
    tested = runs[runs["test_loss"].notna()]
    if tested.empty:
        return (
            "No test split was scored: the losses compared are those of the last validation while training, "
            f"on text of {files.listing(runs['validation_set'].dropna().unique())}."
        )
    some = "" if len(tested) == len(runs) else f" ({len(tested)} of {count(len(runs), 'run')})"
    strides = files.listing(files.whole(stride) for stride in tested["test_stride"].dropna().unique())
    of_text = tested["chance"].isna().any()
    tokens = files.listing(f"{scored:,}" for scored in sorted(tested["test_tokens"].dropna().unique()))
    each = (
        f"{tokens} tokens of it, each scored once, stride {strides}"
        if of_text
        else "every answer of it scored once"
    )
    return (
        f"Tested{some} on the test split of {files.listing(tested['test_set'].dropna().unique())} with the weights "
        f"of the lowest validation loss: {each}."
    )


def _yardsticks(runs: pd.DataFrame) -> str:
    """State the spread of model sizes and the losses that need no model, each where it is known."""
    found, sizes = "", runs["parameters_non_embedding"].dropna()
    if sizes.nunique() > 1:
        spread = f"{sizes.max() / sizes.min() - 1:.1%}"
        found += f" Parameters beside the embedding: {sizes.min():,} to {sizes.max():,}, {spread} apart."
    entropy = runs["unigram_entropy"].dropna()
    if len(entropy):
        values = files.listing(f"{value:.3f}" for value in sorted(entropy.unique()))
        found += (
            f" The unigram baseline, which knows only how frequent each token is, costs {values} nats/token."
        )
    return found


def blocks(described: object) -> str:
    """Format the blocks of a run as "F attention, S timelines"; described: the column `blocks` of runs."""
    try:
        found = json.loads(described)
        return ", ".join(f"{block['letter']} {block['title']}" for block in found)
    except (TypeError, ValueError, KeyError):
        return files.MISSING


def machines(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a machine with n_runs, the busiest first."""
    return _with_counts(
        runs, ["gpu", "cpu", "cores", "threads", "capability", "workers", "memory_bytes", "platform"]
    )


def versions(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a state of the code: commit, tree, versions, n_runs, the busiest first."""
    trees = {"True": "uncommitted changes", "False": "clean"}
    tree = runs["dirty"].astype("str").map(lambda dirty: trees.get(dirty, "not recorded"))
    described = runs.assign(tree=tree, versions=runs["versions"].map(_versions))
    return _with_counts(described, ["commit", "tree", "versions"])


def _with_counts(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    counts = runs.groupby(keys, dropna=False).size().reset_index(name="n_runs")
    return counts.sort_values("n_runs", ascending=False)


def _versions(described: object) -> str:
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(described).items())
    except (TypeError, ValueError, AttributeError):
        return files.MISSING


def missing(runs: pd.DataFrame, figures: list[ReportFigure]) -> list[str]:
    """List, one sentence each, the parts of a report that these runs do not support."""
    absent = [figure.title for figure in figures if figure.missing]
    found = []
    if absent:
        found.append(
            f"{len(absent)} of {count(len(figures), 'figure')}, each with its reason at the end of its section: "
            f"{files.listing(absent, limit=60)}."
        )
    for column, what, why in (
        ("mfu", "MFU", "not recorded, or above the peak"),
        ("peak_memory_bytes", "Peak memory", "not recorded"),
    ):
        unknown = int(runs[column].isna().sum())
        if unknown:
            found.append(f"{what} of {unknown} of {count(len(runs), 'run')}: {why}.")
    if runs["gpu"].isna().all():
        found.append("Speed on a GPU: none of these runs used one.")
    return found


# All of it.


LEAD = 5
"""The first screen of a report answers in so many sentences at most."""


class Section(NamedTuple):
    """A section of figures: those drawn, and those that these results do not support."""

    title: str
    slug: str
    drawn: list[ReportFigure]
    absent: list[ReportFigure]


class Compared(NamedTuple):
    """A table of the comparison: of text, or of synthetic tasks; file: its name in tables/.

    fields: all columns; brief: those that are shown first; rows: all; shown: those on the page.
    """

    file: str
    of_tasks: bool
    fields: tuple[Field, ...]
    brief: tuple[Field, ...]
    rows: pd.DataFrame
    shown: pd.DataFrame


class DrawnRun(NamedTuple):
    """A run that a figure was drawn from, with the place of its config on the page."""

    label: str
    seed: Any
    run: str
    anchor: str


@dataclass(frozen=True)
class Content:
    """Content of a report.

    comparison: analysis.comparing.tables.compare, with `series`, the model's name in figures, and `dot`, its
    colour; compared: the same as tables of text and of synthetic tasks. tasks: models x tasks. runs: those of `drawn`,
    with `anchor` (its place on the page), `config` and `probes` (the texts of config.yaml and probes.json, or None) and
    `described` (its blocks); run_fields: their columns. answers: what the comparison says, in sentences. figures: all
    figures; sections: the same by section; selected: which models they draw, "" where all, of `all_runs` those in
    `drawn`. metric: the metric that
    ranks the models of text; speeds: the load while each run trained. layouts: tables of the named layouts, empty where
    there are fewer than two. harness: scores on tasks of the lm-evaluation-harness, empty where there are none.
    """

    title: str
    summary: str
    answers: list[Answer]
    caveats: list[str]
    metric: str
    comparison: pd.DataFrame
    compared: list[Compared]
    tasks: TaskPage
    run_fields: tuple[Field, ...]
    figures: list[ReportFigure]
    selected: str
    all_runs: int
    drawn: Results
    samples: Samples
    runs: pd.DataFrame
    marks: str
    speeds: str
    layouts: Layouts
    harness: pd.DataFrame
    machines: pd.DataFrame
    versions: pd.DataFrame
    missing: list[str]

    @cached_property
    def lead(self) -> list[str]:
        """The answer in at most LEAD sentences; the report has the others below."""
        first = [sentence for sentence in [_unigram(self.comparison)] if sentence]
        if len(self.answers) == 1:
            return [*first, *self.answers[0].findings][:LEAD]
        texts = [one for one in self.answers if one.findings and not one.accuracies]
        tasks = _over_tasks(self.tasks.long)
        room = max(1, LEAD - len(first) - len(tasks))
        return [*first, *(f"{one.title}: {one.findings[0]}" for one in texts[:room]), *tasks][:LEAD]

    @property
    def gravest(self) -> str:
        """The first caveat, which weighs most, as a sentence of its own."""
        return self.caveats[0][:1].upper() + self.caveats[0][1:]

    @cached_property
    def first_figure(self) -> ReportFigure | None:
        """The figure beside the first table: the final quality of all models, else the first that was drawn."""
        drawn = [figure for figure in self.figures if not figure.missing]
        return next((figure for figure in drawn if figure.name == "comparison"), drawn[0] if drawn else None)

    @property
    def many(self) -> bool:
        """Return whether the runs are too many to name each below every figure."""
        return len(self.runs) > MANY

    @property
    def of_text(self) -> bool:
        """Return whether some run is on text, of which there may be samples."""
        return bool(self.runs["task"].isna().any())

    @property
    def sections(self) -> list[Section]:
        """Return the figures by section, in the order of the list."""
        found: dict[str, list[ReportFigure]] = {}
        for figure in self.figures:
            found.setdefault(figure.section or "More", []).append(figure)
        return [
            Section(
                title,
                title.lower().replace(" ", "-"),
                [one for one in group if not one.missing],
                [one for one in group if one.missing],
            )
            for title, group in found.items()
        ]

    @cached_property
    def _all_drawn_runs(self) -> list[DrawnRun]:
        columns = (self.runs[name] for name in DrawnRun._fields)
        return [DrawnRun(*values) for values in zip(*columns, strict=True)]

    def drawn_runs(self, figure: ReportFigure) -> dict[str, list[DrawnRun]]:
        """Return the runs that a figure was drawn from, by label."""
        found: dict[str, list[DrawnRun]] = {}
        for one in self._all_drawn_runs:
            if not figure.runs or one.run in figure.runs:
                found.setdefault(one.label, []).append(one)
        return found


def _unigram(table: pd.DataFrame) -> str:
    """The sentence for text on which no model is better than the frequencies of its tokens; "" where one is."""
    losses = table["test_loss"].fillna(table[FINAL])
    known = table["task"].isna() & losses.notna() & table["unigram_entropy"].notna()
    if not known.any() or (losses < table["unigram_entropy"])[known].any():
        return ""
    entropy = files.listing(f"{value:.3f}" for value in sorted(table.loc[known, "unigram_entropy"].unique()))
    return (
        f"No model beats the unigram baseline, {entropy} nats/token, which knows only how frequent each token is: "
        "train longer before you compare."
    )


_OVER_TASKS = {
    BETTER: "Better than {}",
    WORSE: "Worse than {}",
    AHEAD: "Ahead of {}, a lead and not a verdict",
    BEHIND: "Behind {}, a lead and not a verdict",
}


def _over_tasks(long: pd.DataFrame) -> list[str]:
    """What is shown on the tasks (`TaskPage.long`): a sentence for each kind of difference from the baseline."""
    if long.empty:
        return []
    if long["baseline"].isna().all():
        first = long[long["rank_best"] == 1].groupby("task", sort=True)["model"]
        each = (f"on {task} {files.listing(models, 4)}" for task, models in first)
        return [f"May be the best: {'; '.join(each)}."]
    found = []
    for kind, words in _OVER_TASKS.items():
        rows = long[long["shown"] == kind]
        each = [f"{m} on {files.listing(of['task'], 4)}" for m, of in rows.groupby("model", sort=False)]
        if each:
            baseline = files.listing(rows["baseline"].unique(), 3)
            found.append(f"{words.format(baseline)}: {'; '.join(each)}.")
    return found or [
        f"No model is shown to differ from {files.listing(long['baseline'].dropna().unique(), 3)}."
    ]


def gather(results: Results, figures: Path, workers: int = 1, baseline: str | None = None) -> Content:
    """Draw the figures into a folder with ``workers`` processes and gather all other content."""
    runs = with_final_validation(results)
    table, metric = compare(runs, baseline), order_metric(runs)
    tasks = task_page(results, baseline)
    series = table["model"].where(table["task"].notna(), table["label"])  # what figures draw
    compared = families(runs, metric, baseline)
    selected = selection(results, compared)
    in_figures = table["label"].isin(selected.labels or table["label"])
    styles = series_styles(zip(series[in_figures], table.loc[in_figures, "color"], strict=True))
    dots = [
        styles[one].color if one in styles else color
        for one, color in zip(series, table["color"], strict=True)
    ]
    table = table.assign(series=series, dot=dots)
    drawn = draw_figures(selected, figures, workers)
    written = samples(selected.chosen, list(table["label"]))
    best = table[table["label"].isin([label for family in compared for label in family.table.index])]
    on_page = best.groupby(best["task"].fillna("")).head(ROWS) if selected.note and len(best) else table
    detailed = _detailed(selected.chosen, len(results.runs) > MANY)
    return Content(
        title=title(results.runs),
        summary=paragraph(results.runs, _models(table, tasks)),
        answers=answers(compared, results.table("documents")),
        caveats=caveats(results),  # after tables and texts were read: their problems are known now
        metric=NAMES[metric],
        comparison=table,
        compared=_compared(table, on_page, metric),
        tasks=tasks,
        run_fields=run_fields(results.runs),
        figures=drawn,
        selected=selected.note,
        all_runs=len(results.runs),
        drawn=selected.chosen,
        samples=written,
        runs=detailed,
        marks=legend(results.runs),
        speeds=conditions(results.runs),
        layouts=layouts(results.of_text),
        harness=harness(results),
        machines=machines(results.runs),
        versions=versions(results.runs),
        missing=missing(results.runs, drawn),
    )


def _models(table: pd.DataFrame, tasks: TaskPage) -> pd.Series:
    """Return the models' names: of tasks alone, once for all of them."""
    return tasks.rows["label"] if len(tasks.rows) and table["task"].notna().all() else table["label"]


ROWS = 100
"""Rows of the comparison on a page where figures draw a selection: the best models, at their best rates."""


def _compared(table: pd.DataFrame, shown: pd.DataFrame, metric: str) -> list[Compared]:
    of_task = table["task"].notna()
    parts = [(of_tasks, table[of_task == of_tasks]) for of_tasks in (False, True)]
    parts = [(of_tasks, rows) for of_tasks, rows in parts if len(rows)]
    return [
        Compared(
            "comparison" if place == 0 else "comparison_tasks",
            of_tasks,
            comparison(metric, of_tasks),
            brief(metric, of_tasks),
            rows,
            shown[shown["task"].notna() == of_tasks],
        )
        for place, (of_tasks, rows) in enumerate(parts)
    ]


def _detailed(results: Results, brief: bool) -> pd.DataFrame:
    runs, told = results.runs, [results.texts("config.yaml"), records(results)]
    configs, probes = map(differences, told) if brief else told
    return runs.assign(
        anchor=[f"run-{place}" for place in range(1, len(runs) + 1)],
        config=pd.Series(configs, index=runs.index, dtype="object"),
        probes=pd.Series(probes, index=runs.index, dtype="object"),
        described=runs["blocks"].map(blocks),
    )


MANY = 100
"""Runs above which the page carries one config whole and of the others what differs, and figures count their runs."""


def differences(texts: Sequence[str | None]) -> list[str | None]:
    """The first text, YAML or indented JSON, as it is; of others the lines that it has not, with their keys in full.

    # as the first on this page, but for
    optim.lr: 0.001
    """
    first = next((place for place, text in enumerate(texts) if text is not None), 0)
    usual = set(_dotted(texts[first] or ""))
    found: list[str | None] = []
    for place, text in enumerate(texts):
        if text is None or place == first:
            found.append(text)
            continue
        own = [line for line in _dotted(text) if line not in usual]
        found.append("\n".join([f"# as the first on this page{', but for' if own else ''}", *own]))
    return found


def _dotted(text: str) -> list[str]:
    """Lines "  lr: 0.001" below "optim:" as "optim.lr: 0.001"."""
    found, above = [], [(-1, "")]
    for line in text.splitlines():
        bare = line.strip().rstrip(",").replace('"', "")
        inside = len(line) - len(line.lstrip())
        key, colon, value = bare.partition(":")
        if bare.startswith("-") or not colon:
            found.append(f"{above[-1][1]}{bare}")
            continue
        while above[-1][0] >= inside:
            above.pop()
        name = f"{above[-1][1]}{key}"
        above.append((inside, f"{name}."))
        if value.strip() not in ("", "{", "["):
            found.append(f"{name}:{value}")
    return found

"""job=list: blocks, presets, tasks and other choices, read from the registries and conf/; run.py adds the figures."""

from __future__ import annotations

import inspect
from pathlib import Path

from experiments.configuration.schema import Config
from experiments.data import SOURCES, TASKS, TOKENIZERS
from experiments.data.task_registry import Task
from experiments.data.task_set import example
from experiments.jobs import Job, all_jobs
from experiments.system.paths import CONF
from zoo import registry
from zoo.config import LAYOUTS
from zoo.probes import all_measures, event_kinds


def run(config: Config) -> None:
    """Print blocks, presets, sizes, recipes, experiments, layouts, data, tasks, tokenizers, measures and jobs."""
    for kind, title in (("mixer", "Mixers"), ("residual", "Residual schemes"), ("channel", "Channel mixers")):
        rows = [(b.letter or " ", b.name, b.title, b.source) for b in registry.blocks(kind).values()]
        print_table(title, rows)
    for group, title in (
        ("model", "Presets (model=)"),
        ("size", "Sizes (size=)"),
        ("recipe", "Recipes (recipe=)"),
        ("experiment", "+experiment="),
    ):
        print_table(
            title, [(path.stem, _first_comment(path)) for path in sorted((CONF / group).glob("*.yaml"))]
        )
    print_table("Layouts (model.pattern=)", list(LAYOUTS.items()))
    print_table("Data (data=)", [(name,) for name in sorted(SOURCES)])
    print_table("Tasks (data=, options data.tasks.)", [_task_row(*item) for item in sorted(TASKS.items())])
    print("\nAn example of each task: what the model reads, and the answers where it is asked\n")
    print("\n".join(drawn_example(task) for _, task in sorted(TASKS.items())))
    print_table("Tokenizers (data.tokenizer=)", [(name,) for name in sorted(TOKENIZERS)])
    print_table(
        "Probe events (recorded by blocks)", [(kind, ", ".join(x)) for kind, x in event_kinds().items()]
    )
    measures = sorted(all_measures().items())
    print_table(
        "Measures (job=probe)", [(name, ", ".join(cls.kinds), _first_sentence(cls)) for name, cls in measures]
    )
    print_table("Jobs (job=)", [(job.name, job.help, job.needs) for job in all_jobs()])


def print_table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print rows of equally many cells below a title, in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def drawn_example(task: type[Task], width: int = 118) -> str:
    """A sequence of a task at its default options: its name, then lines of tokens, each over its answers."""
    lines = [task.name]
    tokens = answers = " "
    for token, answer in [*example(task(task.config())), ("", "")]:
        space = max(len(token), len(answer))
        if not space or len(tokens) + space >= width:
            lines += [tokens.rstrip(), answers.rstrip()]
            tokens = answers = " "
        tokens, answers = f"{tokens} {token.ljust(space)}", f"{answers} {answer.ljust(space)}"
    return "\n".join(lines)


def _task_row(name: str, task: type[Task]) -> tuple[str, str, str, str]:
    made = task(task.config())
    size = f"{made.seq_len} tokens of {made.vocab_size}, chance {made.chance:.3g}"
    return name, task.title, size, task.source


def _first_sentence(documented: type) -> str:
    text = (inspect.getdoc(documented) or "").partition(":\n")[0]
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _first_comment(path: Path) -> str:
    lines = [
        x.lstrip("# ") for x in path.read_text().splitlines() if x.startswith("#") and "@package" not in x
    ]
    return lines[0] if lines else ""


JOB = Job("list", "blocks, presets, layouts, experiments, data, measures, figures and jobs", run)

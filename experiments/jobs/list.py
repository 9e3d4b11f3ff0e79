"""job=list: blocks, presets, tasks and other choices, read from the registries and conf/."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments.configuration.schema import Config
from experiments.data import SOURCES, TASKS, TOKENIZERS
from experiments.data.task_set import example
from experiments.data.tasks_base import Task
from experiments.jobs import Job, all_jobs
from experiments.system import signals
from experiments.system.machine import one_line
from experiments.system.paths import CONF
from zoo import registry
from zoo.config import LAYOUTS
from zoo.errors import unknown
from zoo.probes import all_measures, event_kinds


def run(config: Config) -> None:
    """Print every part, or the one that show= names. Raises UserError for another word."""
    parts = _parts()
    if config.show is not None and config.show not in parts:
        raise unknown("part of job=list", config.show, parts)
    for name, print_part in parts.items():
        if config.show in (None, name):
            print_part()


def texts() -> dict[str, str]:
    """What every part prints, by the word for show=."""
    found = {}
    for name, print_part in _parts().items():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_part()
        found[name] = out.getvalue()
    return found


def _parts() -> dict[str, Callable[[], None]]:
    """Return the choices there are, by the word for show=, in the order of the whole list."""
    return {
        "mixers": partial(_print_blocks, "mixer", "Mixers"),
        "residuals": partial(_print_blocks, "residual", "Residual schemes"),
        "channels": partial(_print_blocks, "channel", "Channel mixers"),
        "presets": partial(_print_files, "model", "Presets (model=)"),
        "published": partial(_print_files, "model/published", "Published models (model=published/NAME)"),
        "sizes": partial(_print_files, "size", "Sizes (size=)"),
        "recipes": partial(_print_files, "recipe", "Recipes (recipe=)"),
        "experiments": partial(_print_files, "experiment", "+experiment="),
        "layouts": partial(print_table, "Layouts (model.pattern=)", list(LAYOUTS.items())),
        "data": partial(print_table, "Data (data=)", [(name,) for name in sorted(SOURCES)]),
        "tasks": _print_tasks,
        "tokenizers": partial(
            print_table, "Tokenizers (data.tokenizer=)", [(name,) for name in sorted(TOKENIZERS)]
        ),
        "events": _print_events,
        "measures": _print_measures,
        "jobs": _print_jobs,
        "figures": _print_figures,
    }


def _print_blocks(kind: str, title: str) -> None:
    blocks = registry.blocks(kind).values()
    words = (b.word if kind == "mixer" else " " for b in blocks)
    print_table(title, [(word, b.name, b.title, b.source) for word, b in zip(words, blocks, strict=True)])


def _print_files(group: str, title: str) -> None:
    print_table(title, [(path.stem, _first_comment(path)) for path in sorted((CONF / group).glob("*.yaml"))])


def _print_tasks() -> None:
    rows, examples = [], []
    for name, task in sorted(TASKS.items()):
        try:
            row, drawn = _task_row(name, task), drawn_example(task)
        except Exception as error:  # of a file that somebody writes
            _tell(f"task {name} cannot be used: {type(error).__name__}: {one_line(error)}")
        else:
            rows, examples = [*rows, row], [*examples, drawn]
    print_table("Tasks (data=, options data.tasks.)", rows)
    print("\nAn example of each task: what the model reads, and the answers where it is asked\n")
    print("\n".join(examples))


def _print_events() -> None:
    rows = [(kind, ", ".join(names)) for kind, names in event_kinds().items()]
    print_table("Probe events (recorded by blocks)", rows)


def _print_measures() -> None:
    measures = sorted(all_measures().items())
    print_table(
        "Measures (job=probe)", [(name, ", ".join(cls.kinds), _first_sentence(cls)) for name, cls in measures]
    )


def _print_jobs() -> None:
    print_table("Jobs (job=)", [(job.name, job.help, job.needs) for job in all_jobs(_tell)])


def _print_figures() -> None:
    with signals.loading():
        from analysis.gallery import listed

    print_table(
        "Figures (job=report draws those for which there are results; job=publish figures=[...])",
        [(entry.name, entry.section, entry.title) for entry in listed()],
    )


def _tell(line: str) -> None:
    print(f"notice: {line}", file=sys.stderr, flush=True)


def print_table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print rows of equally many cells below a title, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
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


JOB = Job(
    "list", "list blocks, presets, layouts, experiments, data, probe events, measures, figures and jobs", run
)

"""job=list: the blocks, presets and other choices, read from the registry and from conf/."""

from __future__ import annotations

from pathlib import Path

from experiments.data import SOURCES, TOKENIZERS
from experiments.jobs import Job, all_jobs
from experiments.paths import CONF
from experiments.schema import Config
from zoo import pattern, registry


def run(config: Config) -> None:
    """Print blocks, presets, sizes, layouts, experiments, data sources, tokenizers and jobs."""
    for kind, title in (("mixer", "Mixers"), ("residual", "Residual schemes"), ("channel", "Channel mixers")):
        rows = [(b.letter or " ", b.name, b.title, b.source) for b in registry.blocks(kind).values()]
        _table(title, rows)
    for group, title in (
        ("model", "Presets (model=)"),
        ("size", "Sizes (size=)"),
        ("experiment", "+experiment="),
    ):
        _table(title, [(path.stem, _first_comment(path)) for path in sorted((CONF / group).glob("*.yaml"))])
    _table("Layouts (model.pattern=)", list(pattern.LAYOUTS.items()))
    _table("Data (data=)", [(name,) for name in sorted(SOURCES)])
    _table("Tokenizers (data.tokenizer=)", [(name,) for name in sorted(TOKENIZERS)])
    _table("Jobs (job=)", [(job.name, job.help, job.needs) for job in all_jobs()])


def _table(title: str, rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _first_comment(path: Path) -> str:
    lines = [
        x.lstrip("# ") for x in path.read_text().splitlines() if x.startswith("#") and "@package" not in x
    ]
    return lines[0] if lines else ""


JOB = Job("list", "blocks, presets, layouts, experiments, data and jobs", run)

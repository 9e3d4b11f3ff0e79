"""The training stages of job=gpu, and publishing their curves and scores."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

from experiments import data
from experiments.gpu.stage_settings import PATTERNS, Settings
from experiments.parallel.group import pick_device
from experiments.planning.plan import Plan, plan
from experiments.runs.folders import METRICS, RunPaused, read_metrics
from experiments.scoring.text import score_best
from experiments.system import machine
from experiments.system.progress import Bar
from experiments.training.execute import execute
from zoo.files import write_atomic
from zoo.io import CARD

# Left of a stage's time for set-up, the last checkpoint and the end of a run.
RESERVE = 0.25


def advance(settings: Settings, name: str) -> bool:
    """Train the run of PATTERNS[name] for what is left of the stage's time; returns whether it is complete."""
    began = time.monotonic()
    config = settings.training(name, settings.seconds)
    data.prepare(config.data)
    left = settings.seconds * (1 - RESERVE) - (time.monotonic() - began)
    planned = plan(settings.training(name, max(left, 1.0)))
    bar = Bar(planned.title, config.trainer.progress)
    try:
        execute(planned, bar)
    except RunPaused as pause:
        print(pause)
    finally:
        bar.close()
    return planned.folder.complete


def publish(settings: Settings) -> bool:
    """Write training curves and scores, also of unfinished runs; returns whether all runs are complete."""
    scores, curves = [], []
    for name in PATTERNS:
        planned = plan(settings.training(name, settings.seconds))
        rows = read_metrics(planned.folder.path / METRICS)
        curves += [{"model": name, **row} for row in rows]
        if (planned.folder.path / CARD).is_file():
            scores.append(_score(settings, name, planned, rows))
    if not scores:
        print("nothing to publish: no training stage has reached its first validation")
        return False
    _write_csv(settings, "gpu_curves.csv", curves)
    _write_csv(settings, "gpu_training.csv", scores)
    return all(row["complete"] for row in scores) and len(scores) == len(PATTERNS)


def _score(settings: Settings, name: str, planned: Plan, rows: list[dict[str, str]]) -> dict[str, Any]:
    """The row of a run in the table of scores: its best weights so far on every split."""
    config = planned.config
    corpus, device = data.prepare(config.data), pick_device(config.device)
    bar = Bar(planned.title, config.trainer.progress)
    metrics = score_best(config, corpus, planned.folder.path, device, bar, config.evaluate.splits)
    bar.close()
    labels = corpus.describe()
    steady = [float(r["tokens_per_second"]) for r in rows if r["tokens_per_second"]]
    return {
        "model": name,
        "layers": planned.letters,
        "training_set": labels["train"],
        "test_set": labels["test"],
        "machine": settings.device_name,
        "torch": machine.versions()["torch"],
        "commit": (machine.commit()[0] or "")[:12],
        "seed": config.seed,
        "steps": rows[-1]["step"],
        "tokens": rows[-1]["tokens"],
        "complete": planned.folder.complete,
        "tokens_per_second_median": sorted(steady)[len(steady) // 2] if steady else "",
        **{f"{split}_{key}": value for split, m in metrics.items() for key, value in m.items()},
    }


def _write_csv(settings: Settings, name: str, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    settings.published.mkdir(parents=True, exist_ok=True)
    write_atomic(settings.published / name, text.getvalue())
    print(f"table: {settings.published / name}")

"""Probing one finished run: its weights at one step, its own text, tables into its folder probes/."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from experiments import machine, weights
from experiments.data import Split
from experiments.probing import looks, tables
from experiments.probing.measures import loss_by_position, measured
from experiments.probing.samples import samples
from experiments.probing.windows import sentence, spread
from experiments.runs import CONFIG, digest, refuse_link
from experiments.schema import Config, ProbeConfig
from experiments.trained import Trained, open_text, open_trained
from zoo.errors import UserError
from zoo.files import write_json
from zoo.probes import all_measures

RECORD = "probes.json"
_FORMAT = 3


def probed(run: Path, probe: ProbeConfig) -> bool:
    """Whether the tables of these very weights and settings are there."""
    try:
        record = json.loads((run / tables.FOLDER / RECORD).read_text())
        at = wanted(run, probe)
        return (
            record["digest"] == digest(settings(probe, at))
            and record["step"] == weights.find(run, at)[1]
            and all(tables.file(run, name).is_file() for name in record["tables"])
        )
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False


def wanted(run: Path, probe: ProbeConfig) -> str:
    """Whose weights to look at: what is asked for, or else what the run was configured with, or else the best."""
    if probe.at is not None:
        return probe.at
    try:
        at = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))["probe"]["at"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, RecursionError):
        at = None  # a run of before this key; a damaged file is complained of where the text is read from it
    weights.check(at)
    return weights.BEST if at is None else str(at)


def settings(probe: ProbeConfig, at: str = weights.BEST) -> dict[str, Any]:
    """What decides the tables of a run, besides its weights and its text; `at` where that is not best."""
    given = {"format": _FORMAT, "measures": sorted(all_measures()), **dataclasses.asdict(probe)}
    del given["at"]
    return given if at == weights.BEST else {**given, "at": at}


def probe_run(run: Path, config: Config) -> list[str]:
    """Write all tables that a complete run has something for, and last what made them; returns the tables' names.

    Tables of an earlier pass go, and what a killed one left. Raises UserError where weights or text are not as they
    were in training, or where the folder of the tables is a link.
    """
    refuse_link(run / tables.FOLDER)
    began = time.perf_counter()
    torch.set_num_threads(config.trainer.threads)
    device = machine.pick(config.device)
    at = wanted(run, config.probe)
    place, step = weights.find(run, at)
    trained = dataclasses.replace(open_trained(str(place), device), step=step)
    split = open_text(trained, config.data, config.trainer.progress).splits["validation"]
    made = _make(trained, split, config.probe, machine.precision(config.trainer.precision, device))
    (run / tables.FOLDER).mkdir(exist_ok=True)
    tables.remove_partials(run)
    (run / tables.FOLDER / RECORD).unlink(missing_ok=True)  # from here on the tables are of two passes
    for name, rows in made.items():
        if rows:
            tables.write(run, name, rows)
        else:
            tables.file(run, name).unlink(missing_ok=True)
    names = [name for name, rows in made.items() if rows]
    write_json(run / tables.FOLDER / RECORD, _record(trained, config, at, names, time.perf_counter() - began))
    return names


def _make(
    trained: Trained, split: Split, probe: ProbeConfig, precision: str
) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> rows."""
    model, tokenizer = trained.model, trained.tokenizer
    text = functools.cache(lambda token: tokenizer.decode([token]))
    shown = sentence(split, tokenizer.bos_id, probe.map_tokens)
    routes = looks.routes(model, shown)
    windows, _ = spread(split, -(-probe.routing_tokens // model.seq_len), model.seq_len)
    return {
        "measures": [(trained.step, *row) for row in _measures(trained, split, probe, precision)],
        "maps": looks.maps(model, shown),
        "sentence": [(i, token, text(token)) for i, token in enumerate(shown[0].tolist())],
        "routes": routes,
        "assignments": looks.assignments(model, windows, probe.batch_size, text) if routes else [],
        "samples": list(samples(trained, probe)),
    }


def _measures(trained: Trained, split: Split, probe: ProbeConfig, precision: str) -> list[tuple[Any, ...]]:
    model = trained.model
    rows = measured(model, *spread(split, probe.windows, model.seq_len), probe.batch_size)
    long = spread(split, probe.long_windows, probe.extrapolate * model.seq_len)
    return rows + loss_by_position(model, *long, max(1, probe.batch_size // probe.extrapolate), precision)


def _record(trained: Trained, config: Config, at: str, names: list[str], seconds: float) -> dict[str, Any]:
    commit, dirty = machine.commit()
    return {
        "settings": settings(config.probe, at),
        "digest": digest(settings(config.probe, at)),
        "at": at,
        "step": trained.step,
        "tables": names,
        "command": machine.command(),
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(trained.model.embedding.weight.device),
        "seconds": round(seconds, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }

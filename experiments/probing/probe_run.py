"""Probing one finished run: its weights at one step, its own text, tables into its folder probes/."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from experiments.configuration.other_model import given_backend
from experiments.configuration.schema import Config, ProbeConfig
from experiments.data import Split, TaskSet
from experiments.data.cache import content_hash
from experiments.parallel.group import pick_device, pick_precision
from experiments.probing import per_token, probe_tables, routing_text
from experiments.probing.held_out import evenly_spaced_windows, loss_by_position, probe_windows
from experiments.probing.samples import samples
from experiments.probing.sentence import probed_sentence
from experiments.probing.task_sequences import task_tables
from experiments.runs import saved_weights
from experiments.runs.folders import CONFIG, refuse_link
from experiments.runs.load_run import LoadedRun, load_corpus, load_model, load_run
from experiments.scoring.evaluate_task import task_of
from experiments.system import machine
from zoo.errors import UserError
from zoo.files import write_json
from zoo.probes import all_measures

RECORD = "probes.json"
_FORMAT = 4


def is_probed(run: Path, probe: ProbeConfig) -> bool:
    """Return whether the tables of these weights and settings exist."""
    try:
        record = json.loads((run / probe_tables.FOLDER / RECORD).read_text())
        at = weights_to_probe(run, probe)
        return (
            record["digest"] == content_hash(settings(probe, at), 12)
            and record["step"] == saved_weights.find(run, at)[1]
            and all(probe_tables.file(run, name).is_file() for name in record["tables"])
        )
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False


def weights_to_probe(run: Path, probe: ProbeConfig) -> str:
    """The weights to probe (best, last or a step): as asked for, else as the run was configured, else the best."""
    if probe.at is not None:
        return probe.at
    try:
        at = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))["probe"]["at"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, RecursionError):
        at = None  # a run of before this key; a damaged file is complained of where the text is read from it
    saved_weights.check(at)
    return saved_weights.BEST if at is None else str(at)


def settings(probe: ProbeConfig, at: str = saved_weights.BEST) -> dict[str, Any]:
    """The settings that decide the tables of a run, besides its weights and text; with `at` where it is not best."""
    given = {"format": _FORMAT, "measures": sorted(all_measures()), **dataclasses.asdict(probe)}
    del given["at"], given["stream_energy"]
    return given if at == saved_weights.BEST else {**given, "at": at}


def probe_run(run: Path, config: Config) -> list[str]:
    """Write the probe tables of a complete run that have rows, then probes.json, their provenance; returns their names.

    Tables of an earlier pass are replaced. Raises UserError where weights or text are not those of the training, or
    where the folder of the tables is a link.
    """
    refuse_link(run / probe_tables.FOLDER)
    began = time.perf_counter()
    torch.set_num_threads(config.trainer.threads)
    device = pick_device(config.device)
    at = weights_to_probe(run, config.probe)
    place, step = saved_weights.find(run, at)
    own = task_of(str(place))
    how = {"precision": config.trainer.precision, "backend": given_backend(config)}
    if own is None:
        loaded = dataclasses.replace(load_run(str(place), device, ("scoring", "decoding"), **how), step=step)
        splits = load_corpus(loaded, config.data, config.trainer.progress).splits
        made = _make_tables(loaded, splits, config.probe, pick_precision(config.trainer.precision, device))
    else:
        made = task_tables(load_model(place, device, ("scoring",), **how), TaskSet(own), config.probe, step)
    (run / probe_tables.FOLDER).mkdir(exist_ok=True)
    probe_tables.remove_partials(run)
    (run / probe_tables.FOLDER / RECORD).unlink(missing_ok=True)  # from here on the tables are of two passes
    for name, rows in made.items():
        if rows:
            probe_tables.write(run, name, rows)
        else:
            probe_tables.file(run, name).unlink(missing_ok=True)
    names = [name for name, rows in made.items() if rows]
    write_json(
        run / probe_tables.FOLDER / RECORD,
        _record(device, step, config, at, names, time.perf_counter() - began),
    )
    return names


def _make_tables(
    loaded: LoadedRun, splits: Mapping[str, Split], probe: ProbeConfig, precision: str
) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> rows."""
    model, held_out = loaded.model, splits["validation"]
    text = functools.cache(lambda token: loaded.tokenizer.decode([token]))
    sentence = probed_sentence(loaded, held_out, probe)
    routes, split = per_token.routes(model, sentence), routing_text.split_name(probe)
    counted = routing_text.batches(splits, probe, model.seq_len) if routes else []
    return {
        "measures": _measures(loaded, held_out, probe, precision, counted),
        "maps": per_token.attention_maps(model, sentence),
        "sentence": [(i, token, text(token), probe.sentence) for i, token in enumerate(sentence[0].tolist())],
        "routes": routes,
        "alternatives": per_token.alternatives(model, sentence),
        "assignments": [(*row, split) for row in per_token.assignments(model, counted, text)],
        "samples": list(samples(loaded, probe)),
    }


def _measures(
    loaded: LoadedRun, split: Split, probe: ProbeConfig, precision: str, counted: list[Tensor]
) -> list[tuple[Any, ...]]:
    """Rows over windows of the validation split; those of routers over `counted` where its split is asked for."""
    model = loaded.model
    rows = probe_windows(model, *evenly_spaced_windows(split, probe.windows, model.seq_len), probe.batch_size)
    long = evenly_spaced_windows(split, probe.long_windows, probe.extrapolate * model.seq_len)
    rows += loss_by_position(model, *long, max(1, probe.batch_size // probe.extrapolate), precision)
    routed = routing_text.routing_rows(model, counted) if probe.routing_split else []
    replaced = {row.measure for row in routed}
    return [
        (loaded.step, *row, name)
        for name, found in (
            ("validation", [row for row in rows if row.measure not in replaced]),
            (probe.routing_split, routed),
        )
        for row in found
    ]


def _record(
    device: torch.device, step: int | None, config: Config, at: str, names: list[str], seconds: float
) -> dict[str, Any]:
    commit, dirty = machine.commit()
    return {
        "settings": settings(config.probe, at),
        "digest": content_hash(settings(config.probe, at), 12),
        "at": at,
        "step": step,
        "tables": names,
        "command": machine.command(),
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(device),
        "seconds": round(seconds, 3),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }

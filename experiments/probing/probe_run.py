"""Probing finished runs: which ones, what is computed for each, and the tables in its folder probes/."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from experiments import runs
from experiments.configuration.compose import given_backend
from experiments.configuration.schema import Config, ProbeConfig
from experiments.data import Split, TaskSet
from experiments.data.cache import content_hash
from experiments.parallel.group import pick_device, pick_precision
from experiments.probing import per_token
from experiments.probing.held_out import (
    evenly_spaced_windows,
    loss_by_position,
    probe_windows,
    probed_sentence,
    samples,
)
from experiments.probing.per_token import task_tables
from experiments.runs import (
    CONFIG,
    FAILURE,
    SUMMARY,
    LoadedRun,
    RunFolder,
    load_corpus,
    load_model,
    load_run,
    refuse_link,
    resolves_outside,
)
from experiments.scoring.evaluate import task_of
from experiments.system import machine
from experiments.system.machine import one_line
from experiments.system.paths import NOT_EXPERIMENTS
from zoo.errors import UserError
from zoo.files import read_json, require_file, write_atomic, write_json
from zoo.probes import all_measures
from zoo.probes.measure import Row, smallest_rank
from zoo.registry import source_hash

# The runs to probe: complete ones; other folders are named with the reason why not.

_DEPTH = 2  # results / experiment / run


def find_runs(config: Config) -> tuple[list[Path], list[str]]:
    """The complete runs of run=RUN or of runs=FOLDER, and a line about every other folder.

    Raises UserError where there is no complete one.
    """
    place = Path(config.run or config.runs or f"{config.results}/{config.name}")
    if not place.is_dir():
        raise UserError(f"{place} is not a folder; give run=results/NAME/RUN or runs=results/NAME")
    found = [
        (folder, _elsewhere(folder, place) or _problem(folder))
        for folder in _folders(place, 0 if config.run else _DEPTH)
    ]
    runs = [folder for folder, problem in found if not problem]
    others = [f"{folder}: {problem}" for folder, problem in found if problem]
    if not runs:
        raise UserError(f"no complete run in {place}: {'; '.join(others[:5])}")
    return runs, others


def run_title(run: Path) -> str:
    """The name of a run in messages."""
    summary = RunFolder(run).summary()
    return one_line(f"{summary.get('name', run.name)} seed {summary.get('seed', '?')}")


def _folders(place: Path, depth: int, root: Path | None = None) -> Iterator[Path]:
    """Run folders below a run, an experiment or all results, folders without any, and links out of the first one."""
    root = root or place
    ends = resolves_outside(place, root) or _is_run(place) or not depth or _closed(place)
    inside = [] if ends else [x for x in sorted(place.iterdir()) if _may_hold_runs(x)]
    if not inside:
        yield place
    for folder in inside:
        yield from _folders(folder, depth - 1, root)


def _elsewhere(folder: Path, root: Path) -> str:
    """A message where a folder is a link to another place, which must be named explicitly; "" where it is none."""
    return (
        f"is a link to {folder.resolve()}; name that to have it probed"
        if resolves_outside(folder, root)
        else ""
    )


def _closed(folder: Path) -> bool:
    return not os.access(folder, os.R_OK | os.X_OK)


def _is_run(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in (SUMMARY, FAILURE, CONFIG))


def _may_hold_runs(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_")) and path.name not in NOT_EXPERIMENTS


def _problem(folder: Path) -> str:
    """Why there is no complete run in a folder; "" if there is."""
    if _closed(folder):
        return "cannot be opened: no permission"
    run = RunFolder(folder)
    if not run.complete:
        return "failed" if run.failed else "not complete" if _is_run(folder) else "holds no run"
    try:
        run.summary()
    except UserError as error:
        return f"its {SUMMARY} cannot be read ({error})"
    return ""


# Tables: every column has the metadata `unit` and `meaning` (UTF-8), so a file explains itself.

FOLDER = "probes"
TRAINING = "training"  # the table `measures`, taken while a run trained
_INT, _FLOAT, _STR = pa.int64(), pa.float64(), pa.string()

_LAYER = ("layer", _INT, "", "from 0; as many as there are layers: after the last; empty: whole model")
_PART = ("part", _STR, "", "mixer, channel, head, or empty for the whole model")
_BLOCK = ("block", _STR, "", "name of the mixer or channel mixer")
_HEAD = ("head", _INT, "", "from 0; empty where there are no heads")
_POSITION = ("position", _INT, "", "position in the sentence, from 0")
_TOKEN = ("token", _INT, "", "token id")
_TEXT = ("text", _STR, "", "the token as text")
_ROUTE = (
    *(_LAYER, _PART, _BLOCK, _HEAD, _POSITION),
    ("rank", _INT, "", "0: the first choice"),
    ("choice", _INT, "", "timeline, memory or expert"),
    ("probability", _FLOAT, "", "of this choice"),
)

# Table -> columns: name, type, unit, meaning.
_COLUMNS = {
    "measures": [
        ("step", _INT, "steps", "optimiser steps done"),
        *(_LAYER, _PART, _BLOCK, _HEAD),
        ("axis", _STR, "", "what start and end count: position, distance, expert, rank, step, quantile"),
        ("start", _FLOAT, "", "first value of the bucket"),
        ("end", _FLOAT, "", "one past the last; of a quantile: the quantile"),
        ("measure", _STR, "", "what the number is"),
        ("value", _FLOAT, "", "the number"),
        ("count", _INT, "", "observations it is the mean of"),
        ("split", _STR, "", "split of the text that was read"),
    ],
    "maps": [
        *(_LAYER, _BLOCK, _HEAD),
        ("kind", _STR, "", "attention, or selection (1: may be read)"),
        ("query", _INT, "", "position in the sentence"),
        ("key", _INT, "", "position in the sentence"),
        ("weight", _FLOAT, "", "what of the key goes into the query; pairs below 1e-3 are left out"),
    ],
    "sentence": [
        *(_POSITION, _TOKEN, _TEXT),
        ("given", _STR, "", "the text that probe.sentence gave; empty: held-out text"),
    ],
    "routes": [*_ROUTE],
    "alternatives": [*_ROUTE],  # choices not taken; their ranks go on from those of `routes`
    "assignments": [
        *(_LAYER, _PART, _BLOCK, _HEAD),
        ("choice", _INT, "", "first choice: timeline, memory or expert"),
        *(_TOKEN, _TEXT),
        ("count", _INT, "", "how often a token of this kind went there"),
        ("split", _STR, "", "split of the text that was read"),
    ],
    "samples": [
        ("prompt", _STR, "", "what the model was given"),
        ("text", _STR, "", "what it wrote after that"),
        ("temperature", _FLOAT, "", "0: the most likely token"),
        ("sample_seed", _INT, "", "seed of the sampling"),
        ("tokens_per_second", _FLOAT, "tokens/s", "decoding speed, prompt included"),
    ],
}

SCHEMAS = {
    table: pa.schema(
        pa.field(name, kind, metadata={"unit": unit, "meaning": meaning})
        for name, kind, unit, meaning in columns
    )
    for table, columns in _COLUMNS.items()
}
"""Table -> its columns, with their units and meanings as metadata."""
SCHEMAS[TRAINING] = SCHEMAS["measures"]

_LATER = ("split", "given")
"""Columns that tables written by earlier versions lack: empty there."""


def file(run: Path, name: str) -> Path:
    """The path of a table of a run."""
    return run / FOLDER / f"{name}.parquet"


def remove_partials(run: Path) -> None:
    """Remove half-written tables of a process that was killed."""
    for leftover in (run / FOLDER).glob(".*.partial"):
        leftover.unlink(missing_ok=True)


def write(run: Path, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows, tuples in the order of the columns, by an atomic rename."""
    schema = SCHEMAS[name]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), content, compression="zstd")
    file(run, name).parent.mkdir(exist_ok=True)
    write_atomic(file(run, name), content.getbuffer())


def read(run: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table. Raises OSError, ValueError or KeyError where it cannot be read, or is another table."""
    require_file(file(run, name))
    try:
        table = pq.ParquetFile(file(run, name)).read()
        for column in _LATER:
            if column in SCHEMAS[name].names and column not in table.column_names:
                table = table.append_column(column, pa.nulls(len(table), _STR))
        table = table.select(SCHEMAS[name].names).cast(SCHEMAS[name])
        table.validate(full=True)
    except pa.ArrowException as error:  # of which some are no ValueErrors
        raise ValueError(str(error)) from error
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


# Probing one run: its weights at one step, on its own text.

RECORD = "probes.json"
_FORMAT = 4
_RECORD = {"digest": str, "step": object, "tables": [str], "measure_files?": {str: str}}


def is_probed(run: Path, probe: ProbeConfig) -> bool:
    """Return whether the tables of these weights and settings exist."""
    try:
        record = read_json(run / FOLDER / RECORD, _RECORD)
        at = weights_to_probe(run, probe)
        return (
            record["digest"] == content_hash(settings(probe, at), 12)
            and record["step"] == runs.find(run, at)[1]
            and not changed_measures(record)
            and all(file(run, name).is_file() for name in record["tables"])
        )
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False


def weights_to_probe(run: Path, probe: ProbeConfig) -> str:
    """The weights to probe (best, last or a step): as asked for, else as the run was configured, else the best."""
    if probe.at is not None:
        return probe.at
    try:
        at = runs.read_config(run / CONFIG)["probe"]["at"]
    except (OSError, ValueError, LookupError, TypeError):
        at = None  # a run of before this key; a damaged file is complained of where the text is read from it
    runs.check(at)
    return runs.BEST if at is None else str(at)


def measure_files() -> dict[str, str]:
    """Measure -> hash of its file."""
    return {name: source_hash(cls) for name, cls in all_measures().items()}


def changed_measures(record: dict[str, Any]) -> list[str]:
    """The measures whose files were changed after a run was probed; of older records nothing is known."""
    before = record.get("measure_files", {})
    return [name for name, digest in measure_files().items() if before.get(name, digest) != digest]


def settings(probe: ProbeConfig, at: str = runs.BEST) -> dict[str, Any]:
    """The settings that decide the tables of a run, besides its weights and text; with `at` where it is not best."""
    given = {"format": _FORMAT, "measures": sorted(all_measures()), **dataclasses.asdict(probe)}
    del given["at"], given["stream_energy"]
    return given if at == runs.BEST else {**given, "at": at}


def probe_run(run: Path, config: Config) -> list[str]:
    """Write the probe tables of a complete run that have rows, then probes.json, their provenance; returns their names.

    Tables of an earlier pass are replaced. Raises UserError where weights or text are not those of the training, or
    where the folder of the tables is a link.
    """
    refuse_link(run / FOLDER)
    began = time.perf_counter()
    torch.set_num_threads(config.trainer.threads)
    device = pick_device(config.device)
    at = weights_to_probe(run, config.probe)
    place, step = runs.find(run, at)
    own = task_of(str(place))
    how = {"precision": config.trainer.precision, "backend": given_backend(config)}
    if own is None:
        loaded = dataclasses.replace(load_run(str(place), device, ("scoring", "decoding"), **how), step=step)
        splits = load_corpus(loaded, config.data, config.trainer.progress).splits
        made = _make_tables(loaded, splits, config.probe, pick_precision(config.trainer.precision, device))
    else:
        made = task_tables(load_model(place, device, ("scoring",), **how), TaskSet(own), config.probe, step)
    (run / FOLDER).mkdir(exist_ok=True)
    remove_partials(run)
    (run / FOLDER / RECORD).unlink(missing_ok=True)  # from here on the tables are of two passes
    for name, rows in made.items():
        if rows:
            write(run, name, rows)
        else:
            file(run, name).unlink(missing_ok=True)
    names = [name for name, rows in made.items() if rows]
    write_json(
        run / FOLDER / RECORD,
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
    routes, split = per_token.routes_of(model, sentence), per_token.split_name(probe)
    counted = per_token.batches(splits, probe, model.seq_len) if routes else []
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
    routed = per_token.routing_rows(model, counted) if probe.routing_split else []
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
        "measure_files": measure_files(),
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


# In words: the rank of factorised streams that the energies of a probed run call for.


def stream_rank(run: Path, energy: float) -> str:
    """Say how many directions hold a share of a run's stream energy between layers; "" for one stream or no table."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = [Row(*values[1:-1]) for values in read(run, "measures")]  # without step and split
        if found := smallest_rank(rows, energy):
            r, n = found
            return f"{energy:.6g} of the energy of its {n} streams between layers is in {r} directions"
    return ""


def notices_of_probed(run: Path) -> list[str]:
    """What its measures say is wrong with a probed run's numbers, a sentence each; none without their table."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = [Row(*values[1:-1]) for values in read(run, "measures")]  # without step and split
        return [line for cls in all_measures().values() for line in cls.notices(rows)]
    return []

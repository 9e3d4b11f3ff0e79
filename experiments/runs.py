"""Run folders: where a run lives, whether it is complete, who works on it, its metric rows; and its model, loaded.

A run is found by its content: its folder is results/NAME/HASH, where the hash covers what can change its result (the
blocks it uses, the data's content, the recipe, the seed) and nothing else. It is complete when summary.json exists.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

import zoo
from experiments import data
from experiments.data import Corpus, DataConfig
from experiments.data.config import tasks_from
from experiments.parallel.group import pick_precision
from experiments.system import locks
from zoo.backends import check_backend
from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError
from zoo.files import fit, read_bytes, read_json, write_atomic, write_json
from zoo.io import CARD, WEIGHTS, read_card
from zoo.model import LanguageModel
from zoo.options import check_limits, remembered
from zoo.pretrained import Published, read_tokenizer
from zoo.tokenization import Tokenizer

# Folders and metrics.csv.

SUMMARY, FAILURE, CONFIG, IDENTITY, BLOCK_FILES, METRICS = (
    "summary.json",
    "failure.json",
    "config.yaml",
    "identity.json",
    "block_files.json",
    "metrics.csv",
)
LOCK = ".lock"
_SCHEMAS: dict[str, dict[Any, Any]] = {
    SUMMARY: {"metrics?": {str: {str: object}}, "machine?": {str: object}, "steps?": range(2**63)},
    FAILURE: {"message?": str},
    BLOCK_FILES: {str: str},
}
NODES = ".nodes"  # in an experiment's folder: processes of several machines work in it

METRIC_COLUMNS = [
    "step",
    "tokens",
    "split",
    "loss",
    "aux_loss",
    "perplexity",
    "lr",
    "grad_norm",
    "grad_norm_max",
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]
WALL_CLOCK_COLUMNS = [
    "seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
]  # in which two equal runs may differ


class RunFailed(RuntimeError):
    """A run or some cells of a sweep failed; what happened is recorded in their folders."""


class RunPaused(RunFailed):
    """A run was told to stop before its last step; its checkpoint is written, and nothing is recorded as a failure."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder of one run, and the state that the run is in."""

    path: Path

    @property
    def complete(self) -> bool:
        """Return whether the run has ended well: its summary is there."""
        return (self.path / SUMMARY).is_file() and not (self.path / SUMMARY).is_symlink()

    @property
    def failed(self) -> bool:
        """Return whether the last attempt failed."""
        return not self.complete and (self.path / FAILURE).is_file()

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.path / "checkpoints"

    @property
    def resumable(self) -> bool:
        """Return whether it is incomplete and has checkpoints to go on from."""
        return not self.complete and any(self.checkpoints.glob("*"))

    def begin(self, config_yaml: str, identity: dict[str, Any], block_files: dict[str, str]) -> None:
        """Write what the run is of before it trains, and remove half-written files of a killed attempt.

        block_files: hash by path; a run that goes on keeps those that it began with.
        Raises UserError where something in the folder is a link.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path)
        for leftover in self.path.glob("*.partial"):
            leftover.unlink()
        write_atomic(self.path / CONFIG, config_yaml)
        write_json(self.path / IDENTITY, identity)
        if not (self.resumable and (self.path / BLOCK_FILES).is_file()):
            write_json(self.path / BLOCK_FILES, block_files)

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run complete, and remove the record of an earlier failure."""
        write_json(self.path / SUMMARY, summary)
        (self.path / FAILURE).unlink(missing_ok=True)

    def fail(self, error: BaseException) -> None:
        """Record a failed attempt with its traceback, unless the disk is full."""
        self.record(failure_record(error))

    def record(self, record: dict[str, Any]) -> None:
        """Write the record of a failed attempt (`failure_record`), unless the disk is full."""
        with contextlib.suppress(OSError):
            write_json(self.path / FAILURE, record)

    def failure(self) -> dict[str, Any]:
        """The record of the last failed attempt; where that is damaged, a message that says so."""
        try:
            return {"message": "no message", **self._read(FAILURE)}
        except UserError as error:
            return {"message": str(error)}

    def summary(self) -> dict[str, Any]:
        """The summary of a complete run."""
        return self._read(SUMMARY)

    def block_files(self) -> dict[str, str]:
        """Hash by path of its blocks' files when it began; {} where they are not recorded."""
        if self.complete:
            found = self.summary().get("block_files")
        else:
            found = self._read(BLOCK_FILES) if (self.path / BLOCK_FILES).exists() else None
        return found if isinstance(found, dict) else {}

    def _read(self, name: str) -> dict[str, Any]:
        """Raises UserError where the file is damaged."""
        try:
            return read_json(self.path / name, _SCHEMAS[name])
        except (OSError, ValueError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, error: Exception) -> UserError:
        """The error to raise for a file of the run that does not hold what it should."""
        return UserError(
            f"{self.path / name} cannot be read ({type(error).__name__}: {error}); remove it, and the same command "
            "goes on with the run"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process while inside; waits while another one works on it.

        Raises UserError where the folder or its lock is a link, signals.Paused where this process is told to make
        room while it waits.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for place in (self.path, self.path / LOCK, locks.claim_path(self.path / LOCK)):
            refuse_link(place)
        self.path.mkdir(exist_ok=True)
        message = f"{self.path} is being computed by another process; waiting for it"
        if not locks.is_of_one_machine(self.path):
            share_between_nodes(self.path.parent)
        with locks.locked(self.path / LOCK, message, nodes=(self.path.parent / NODES).exists()):
            yield


def share_between_nodes(experiment: Path) -> None:
    """Mark an experiment's folder: from now on its runs are held by claims that processes of other machines see.

    A machine that exports the folder sees a file system of its own, whose locks do not reach the others.
    """
    experiment.mkdir(parents=True, exist_ok=True)
    refuse_link(experiment / NODES)
    (experiment / NODES).touch()


def failure_record(error: BaseException) -> dict[str, Any]:
    """Return what failure.json says of a failed attempt."""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "step": getattr(error, "step", None),
        "module": getattr(error, "module", None),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def resolves_outside(path: Path, root: Path) -> bool:
    """Return whether a path below a folder resolves, through links, to a place outside of it."""
    return not path.resolve().is_relative_to(root.resolve())


def refuse_link(place: Path) -> None:
    """Raise UserError where a file or folder is a symbolic link, so that nothing is written outside of the run."""
    if place.is_symlink():
        raise UserError(
            f"{place} is a link to {os.path.realpath(place)}, and nothing is written through links; remove it"
        )


def refuse_links(folder: Path) -> None:
    """Raise UserError for a link in a run's folder or those of its checkpoints, weights and probes (loggers may)."""
    inside = ("*", "checkpoints/*", "weights/*", "weights/*/*", "probes/*")
    for place in [place for pattern in inside for place in folder.glob(pattern)]:
        refuse_link(place)


class MetricLog:
    """The metric rows of one run. Columns are fixed when the file is made; `extra` are those of auxiliary losses."""

    def __init__(self, path: Path, extra: list[str]) -> None:
        self.path = path
        self.columns = METRIC_COLUMNS + sorted(extra)

    def cut(self, step: int) -> None:
        """Drop the rows after `step`, that of the checkpoint to resume from, and a torn last line."""
        kept = [row for row in read_metrics(self.path) if int(row["step"]) <= step]
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        write_atomic(self.path, out.getvalue())

    def text(self) -> str:
        """The whole file, for a checkpoint, which has to hold the rows of the steps before it."""
        return self.path.read_text(encoding="utf-8")

    def restore(self, text: str) -> None:
        """Put the file of a checkpoint in the place of what is there."""
        write_atomic(self.path, text)

    def append(self, row: dict[str, Any]) -> None:
        """Add one row; numbers are written so that they read back exactly."""
        line = io.StringIO()
        csv.DictWriter(line, self.columns, lineterminator="\n", restval="").writerow(row)
        with open(self.path, "a", newline="") as file:
            file.write(line.getvalue())


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics file, as text; none if there is no file, or one that is none of metrics."""
    try:
        text = read_bytes(path).decode("utf-8")
        whole = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(io.StringIO(whole)))
    except (OSError, ValueError, csv.Error):
        return []
    return [row for row in rows if None not in row and None not in row.values() and _is_step(row.get("step"))]


def _is_step(text: str | None) -> bool:
    return re.fullmatch("[0-9]{1,18}", text or "") is not None


# Loading a finished run or a checkpoint: model, tokenizer and text.

Uses = tuple[str, ...]
OTHER_BACKEND = "any other computes the same: give model.backend=auto"
"""What to do about a run's backend that serves nothing here."""


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A model in evaluation mode with its tokenizer, the run folder it came from and that run's text.

    step: optimiser steps that the weights were trained for, if recorded.

    Of the run's configuration only the node `data` is read, so that runs made before some other key existed stay
    readable. Its cache_dir is ignored: the cache is that of whoever reads the run, on another machine perhaps.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    folder: Path
    data: DataConfig
    step: int | None = None


def load_run(path: str | None, device: torch.device, uses: Uses = ("scoring",), **how: Any) -> LoadedRun:
    """The model at `run=PATH`: a run folder, or a checkpoint or a folder of weights in one.

    uses, how: as `load_model` takes them. Raises UserError with how to give a run.
    """
    if path is None:
        raise UserError(
            "no model given; give run=results/NAME/RUN (a run folder) or run=.../checkpoints/STEP.ckpt"
        )
    where = Path(path)
    card = read_card(where)
    if "task" in card:
        raise UserError(
            f"{path} was trained on the task {card['task']['name']}, which has no text to generate or measure on; "
            "job=evaluate scores it"
        )
    folder = where if (where / CONFIG).is_file() else where.parent.parent
    if "tokenizer" not in card or not (folder / CONFIG).is_file():
        raise UserError(
            f"{path} has no tokenizer or no {CONFIG} beside it; give the folder of a run of this project"
        )
    text = recorded_data(folder / CONFIG)
    packed = text.pack == "document"
    tokenizer, model = zoo.tokenizer(where), load_model(where, device, uses, packed=packed, **how)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the tokenizer at {path} has {tokenizer.vocab_size:,} tokens and its model knows {model.vocab_size:,}"
        )
    if text.seq_len != model.seq_len:
        raise UserError(
            f"{folder / CONFIG} says data.seq_len={text.seq_len:,}, and the model at {path} was trained on windows of "
            f"{model.seq_len:,}; restore the run's own files"
        )
    return LoadedRun(model, tokenizer, folder, text, card.get("step"))


def load_model(
    path: str | Path,
    device: torch.device,
    uses: Uses,
    *,
    precision: str = "fp32",
    backend: str | None = None,
    packed: bool = False,
) -> LanguageModel:
    """`zoo.load`, of a model that its backend serves here in these uses (zoo.backends). Raises UserError if not.

    precision: as in trainer.precision; backend: in place of the one that it was trained with; packed: whether it is
    used on sequences of several documents.
    """
    model = zoo.load(path, device, backend=backend)
    half = pick_precision(precision, device) == "bf16"
    where = {"seq_len": model.seq_len, "device": device, "half": half, "packed": packed}
    check_backend(model.config, uses, remedy=OTHER_BACKEND, **where)
    return model


def recorded_data(path: Path) -> DataConfig:
    """The node `data` of a run's configuration, config.yaml. Raises UserError where the file is damaged."""
    try:
        values = read_config(path)
        fit(values, {"data": {"tasks?": {str: {str: object}}}})
        tasks = values["data"].pop("tasks", {})
        read = from_dict(DataConfig, values["data"], "data", recorded=True)
        read = dataclasses.replace(read, tasks=tasks_from(tasks), cache_dir=None)
        check_limits(read, "data.")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({type(error).__name__}: {error}); restore it") from error
    return read


_LARGEST_CONFIG, _DEEPEST = 2**20, 32


def read_config(path: Path) -> dict[Any, Any]:
    """The mapping in a run's config.yaml. Raises OSError and ValueError where it is none, or larger than any of a run.

    Its shape is looked at first: a few lines with aliases are gigabytes, and nesting has no end.
    """
    text, depth = read_bytes(path, _LARGEST_CONFIG).decode("utf-8"), 0
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases, which no run writes")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError("it is nested too deep")
        found = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(found, dict):
        raise ValueError("it does not hold a mapping")
    return found


def load_corpus(run: LoadedRun, paths: DataConfig, progress: bool = True) -> Corpus:
    """The tokenised text that a run was trained on; paths in `paths` replace the recorded ones (files may move).

    Raises UserError as `data.prepare` does, and where the text at hand gives another tokenizer.
    """
    given = {k: v for k in ("path", "train_path", "gpt2_path", "cache_dir") if (v := getattr(paths, k))}
    cfg = dataclasses.replace(run.data, **given)
    if cfg.tokenizer == "pretrained":  # the run's own, wherever the folder lies that it came from
        cfg = dataclasses.replace(cfg, tokenizer_path=str(run.folder))
    data.check(cfg)
    corpus = data.prepare(cfg, progress)
    if corpus.tokenizer.identity() != run.tokenizer.identity():
        raise UserError(
            f"the text that is here gives another tokenizer than {run.folder} was trained with; restore the run's text"
        )
    return corpus


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights in a folder, not read yet: what model they are of, and a hash of them."""

    config: ModelConfig
    vocab_size: int
    sha256: str
    load: Callable[[], LanguageModel]
    tokenizer: Callable[[], Tokenizer]


def find_weights(place: str) -> Weights:
    """The weights of a run, an exported model or a published one. Raises UserError where there are none."""
    folder = Path(place).expanduser()
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    return _weights_of(folder, [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files])


@remembered
def _weights_of(folder: Path, files: list[tuple[str, int, int]]) -> Weights:
    """files: names, sizes and times, so that weights are hashed again where they are others."""
    if (folder / CARD).is_file():
        card = read_card(folder)
        with open(folder / WEIGHTS, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        config = from_dict(ModelConfig, card["model"], recorded=True)
        load = functools.partial(zoo.load, folder, backend="auto")
        return Weights(config, card["vocab_size"], digest, load, functools.partial(zoo.tokenizer, folder))
    if not files or not (folder / "config.json").is_file():
        raise UserError(
            f"start.weights={folder} holds no weights; give a finished run (results/NAME/RUN), or a published model's "
            "folder with config.json and *.safetensors"
        )
    found = Published.open(folder)
    tokenizer = functools.partial(read_tokenizer, folder)
    return Weights(found.config, found.vocab_size, found.digest(), found.load, tokenizer)


# A run's weights: the best in its folder, others in weights/step-N, the newest in its checkpoints.

FOLDER = "weights"
BEST, LAST = "best", "last"


def step_folder(run: Path, step: int) -> Path:
    """The folder that the weights of a step are exported to."""
    return run / FOLDER / f"step-{step:08d}"


def available(run: Path) -> dict[int, Path]:
    """Step -> its weights, a folder or checkpoint for `zoo.load`; the best only where their step was recorded."""
    found = {step_of(path): path for path in run.glob("checkpoints/step-*.ckpt")}
    whole = (
        path for path in run.glob(f"{FOLDER}/step-*") if all((path / x).is_file() for x in (WEIGHTS, CARD))
    )
    found |= {step_of(path): path for path in whole}
    best = read_card(run).get("step")
    if isinstance(best, int):
        found[best] = run
    return {step: path for step, path in sorted(found.items()) if step}


def find(run: Path, at: str) -> tuple[Path, int | None]:
    """The path of a complete run's weights at best, last or a step, and their step (None: not recorded).

    Raises UserError, naming the available steps, where that one is not among them.
    """
    if at == BEST:
        return run, read_card(run).get("step")
    found = available(run)
    step = _last(run, found) if at == LAST else int(at)
    if step not in found:
        there = ", ".join(f"{s:,}{' (best)' if found[s] == run else ''}" for s in found) or "no known step"
        raise UserError(
            f"{run} has no weights of {'its last step, ' if at == LAST else 'step '}{step:,}, only of {there}; "
            f"give probe.at={BEST} or a step that all runs have, or train with trainer.keep_steps=[{step}]"
        )
    return found[step], step


def check(at: str | None) -> None:
    """Raise UserError where `probe.at` is none of best, last and a step."""
    if at not in (None, BEST, LAST) and not re.fullmatch("[1-9][0-9]*", str(at)):
        raise UserError(
            f"probe.at={at} must be {BEST}, {LAST} or the number of a step (null: as the run was configured)"
        )


def _last(run: Path, found: dict[int, Path]) -> int:
    """The last step that a run took."""
    taken = RunFolder(run).summary().get("steps")
    return max(found, default=0) if taken is None else taken


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or of a folder of weights; 0 where it has none."""
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else 0


# Tables with rows by split: those of one split can be written anew without the others.


def write_splits(path: Path, columns: Sequence[str], scored: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Write the rows of these splits, atomically; those of other splits stay.

    columns: "split", then those of the rows. Floats are written so that they read back exactly.
    """
    out = io.StringIO()
    kept = _rows(path, len(columns)) if path.is_file() else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(row for row in kept if row[0] not in scored)
    for split, rows in scored.items():
        writer.writerows([split, *row] for row in rows)
    write_atomic(path, out.getvalue())


def _rows(path: Path, columns: int) -> list[list[str]]:
    return [row for row in list(csv.reader(io.StringIO(path.read_text())))[1:] if len(row) == columns]

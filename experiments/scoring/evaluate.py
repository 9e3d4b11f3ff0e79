"""Scoring a finished run or a checkpoint: on its own text or task, another text, or other options of its task."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import data
from experiments.configuration.schema import EvaluateConfig
from experiments.data import DataConfig, Split, TaskSet
from experiments.data.cache import cache_root
from experiments.data.config import OF_TEXT, make_task
from experiments.data.corpus import tell_once, token_dtype, write_tokens
from experiments.data.sources import SOURCES, Document, read_split
from experiments.data.sources.text import corpus_name, told_files, whole_files
from experiments.data.tasks_base import TASKS, Task
from experiments.parallel.group import pick_device, pick_precision
from experiments.runs import CONFIG, IDENTITY, LoadedRun, load_corpus, load_model, load_run, recorded_data
from experiments.scoring.tasks import score_sequences
from experiments.scoring.text import Score, count_scored, score_carried, score_split
from experiments.system.processes import Bar, Sink
from zoo.errors import UserError, unknown
from zoo.files import read_json
from zoo.io import read_card
from zoo.options import check_limits
from zoo.tokenization import Tokenizer

# Synthetic tasks: the held-out sequences of a run, or those of other options.

Metrics = dict[str, Any]


def task_of(run: str | None) -> DataConfig | None:
    """The node `data` of a run of a task; None for one of text, or none. Raises UserError for a damaged one."""
    if run is None or "task" not in read_card(run):
        return None
    where = Path(run)
    return recorded_data((where if (where / CONFIG).is_file() else where.parent.parent) / CONFIG)


def with_options(task: DataConfig, options: dict[str, Any]) -> DataConfig:
    """The data of a run with other values of these options of its task."""
    changed = dataclasses.replace(getattr(task.tasks, task.name), **options)
    tasks = dataclasses.replace(task.tasks, **{task.name: changed})
    return dataclasses.replace(task, tasks=tasks, **OF_TEXT)


def task_scores(
    run: str,
    asked: DataConfig,
    options: EvaluateConfig,
    precision: str,
    device: torch.device,
    sink: Sink,
    backend: str | None = None,
) -> Iterator[tuple[str, Metrics]]:
    """Yield the name of each split, and its metrics with "text", the task and its options in words.

    asked: the run's own data, or that task with other options (`with_options`): longer, say. Held-out sequences are
    drawn for these; those of the run's own options are the ones that it was scored on. backend: in place of the run's
    own. Raises UserError for options that are of text, and for a task whose tokens mean something else to the model.
    """
    for key, value in (("carry", options.carry or None), ("stride", options.stride)):
        if value is not None:
            raise UserError(
                f"evaluate.{key}={value} works for text only, and {run} was trained on a synthetic task; leave it out"
            )
    task_set = TaskSet(asked)
    _check_words(task_of(run), task_set.task)
    model = load_model(run, device, ("scoring",), precision=precision, backend=backend)
    for name in options.splits:
        sequences = task_set.held_out(name).first(options.windows)
        score = score_sequences(
            model,
            sequences,
            chance=task_set.task.chance,
            batch_size=options.batch_size,
            precision=pick_precision(precision, device),
            progress=count_scored(sink, name, sequences.tokens.size),
        )
        yield name, {**score.metrics(), "text": task_set.label}


def _check_words(trained_on: DataConfig | None, task: Task) -> None:
    trained = make_task(trained_on) if trained_on is not None and trained_on.name == task.name else None
    words = [[t.word(i) for i in range(t.vocab_size)] for t in (trained, task) if t is not None]
    if trained is None or words[0] != words[1]:
        raise UserError(
            f"data={task.name} with these options has other tokens than those that the run was trained on; give its "
            "own task, and do not change its vocabulary"
        )


# Texts.

TEXT_KEYS = ("name", "path", "text_column", "train_path", "revision")
"""Keys of `data` that say which text, rather than how it is cut."""


def evaluate(
    run: str | PathLike[str],
    text: str | PathLike[str] | DataConfig | None = None,
    *,
    splits: Sequence[str] = ("validation", "test"),
    stride: int | None = None,
    windows: int | None = None,
    carry: bool = False,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, dict[str, Any]]:
    """Return the metrics of a finished run or a checkpoint by split, with the names of the text and the tokenizer.

        experiments.evaluate("results/my_sweep/RUN")["test"]["loss"]
        experiments.evaluate("results/my_sweep/RUN", "book.txt")["text"]["bits_per_byte"]
        experiments.evaluate("results/my_sweep/RUN", DataConfig(name="wikitext103"), splits=["test"])

    text: None for the run's own text; a UTF-8 file, a folder or a glob, scored whole as the split "text"; or a
    DataConfig, of which name, path, train_path and revision count. It is cut by the run's saved tokenizer. stride,
    windows, carry, batch_size: as in evaluate.stride, … (None: half of the trained length; all windows). The metrics:
    loss in nats a token, perplexity, word_perplexity, bits_per_byte, tokens, words, bytes, stride, text, tokenizer.

    A run of a task is scored on its held-out sequences, or with a DataConfig of the same task on those of its options,
    by `experiments.scoring.tasks.TaskScore.metrics`.

    Raises UserError for a run or a text that is not there, is empty, is no UTF-8 or is shorter than one window.
    """
    options = EvaluateConfig(
        stride=stride, splits=list(splits), batch_size=batch_size, carry=carry, windows=windows
    )
    if text is not None and not isinstance(text, DataConfig):
        text = DataConfig(name="text", path=str(text))
    check_evaluate(options)
    trained = task_of(str(run))
    if trained is not None:
        asked = _task_named(trained, text)
        return dict(
            task_scores(str(run), asked, options, precision, pick_device(device), Bar("evaluate", False))
        )
    uses = ("decoding",) if carry else ("scoring",)
    loaded = load_run(str(run), pick_device(device), uses, precision=precision)
    result = scores(loaded, text, options, precision, Bar("evaluate", False))
    return {name: {**score.metrics(), **about} for name, score, about in result}


def _task_named(trained: DataConfig, text: DataConfig | None) -> DataConfig:
    """The task to score a run of a task on. Raises UserError for a text."""
    if text is not None and text.name not in data.TASKS:
        raise UserError(
            f"this run was trained on the task {trained.name}, and cannot be scored on text; leave it out"
        )
    return text or trained


def check_evaluate(options: EvaluateConfig) -> None:
    """Refuse what makes no sense, before a model is loaded. Raises UserError."""
    check_limits(options, "evaluate.")
    if not options.splits:
        raise UserError("evaluate.splits is empty; give evaluate.splits=[validation,test]")
    for key in ("stride", "windows"):
        if options.carry and getattr(options, key) is not None:
            raise UserError(
                f"evaluate.{key}={getattr(options, key)} applies to windows, and evaluate.carry=true scores without "
                "windows; leave one of the two out"
            )


def scores(
    loaded: LoadedRun, text: DataConfig | None, options: EvaluateConfig, precision: str, sink: Sink
) -> Iterator[tuple[str, Score, dict[str, str]]]:
    """Yield the name of each split, its score, and the names of its text and of the tokenizer.

    Raises UserError for a stride that the model's length does not allow.
    """
    length = loaded.model.seq_len
    if not 1 <= (options.stride or 1) <= length:
        raise UserError(f"evaluate.stride={options.stride} must be from 1 to the model's length {length}")
    for one in _splits(loaded, text, options, sink):
        about = {"text": one.text, "tokenizer": loaded.tokenizer.name}
        yield one.name, _score(loaded, one, options, precision, sink), about


def _splits(
    loaded: LoadedRun, text: DataConfig | None, options: EvaluateConfig, sink: Sink
) -> Iterator[NamedSplit]:
    """The splits to score, of the run's own text or of another one in tokens of the run's tokenizer."""
    if text is None or _is_own(loaded, text):
        corpus = load_corpus(loaded, text or DataConfig(), progress=getattr(sink, "enabled", False))
        labels = corpus.describe()
        yield from (NamedSplit(name, labels[name], corpus.splits[name]) for name in options.splits)
        return
    for one in read_splits(text, options.splits, loaded.tokenizer):
        if not options.carry and len(one.split.tokens) <= loaded.model.seq_len:
            raise UserError(
                f"{one.text} has {len(one.split.tokens) - 1:,} tokens of {loaded.tokenizer.name}, and a window of the "
                f"model has {loaded.model.seq_len:,}; give more text, or score it with evaluate.carry=true"
            )
        yield one


def _is_own(loaded: LoadedRun, text: DataConfig) -> bool:
    """Return whether a text is the run's own, the one it was trained on: by name and place, files also by content."""
    trained = loaded.data
    if all(getattr(text, key) == getattr(trained, key) for key in TEXT_KEYS):
        return True
    if text.name != trained.name or text.name != "text":
        return False
    try:
        recorded = read_json(loaded.folder / IDENTITY, {"data": {"content": str}})["data"]["content"]
        return data.fingerprint(dataclasses.replace(trained, path=text.path)) == recorded
    except (UserError, OSError, ValueError, LookupError, TypeError):
        return False  # what is wrong with a text is said when it is read


def _score(loaded: LoadedRun, one: NamedSplit, options: EvaluateConfig, precision: str, sink: Sink) -> Score:
    model, split = loaded.model, one.split
    shared = {
        "batch_size": options.batch_size,
        "document_bos": loaded.tokenizer.bos_id if loaded.data.pack == "document" else None,
        "precision": pick_precision(precision, model.embedding.weight.device),
        "progress": count_scored(sink, one.name, len(split.tokens) - 1),
    }
    if options.carry:
        return score_carried(model, split, **shared)
    stride = options.stride or max(1, model.seq_len // 2)
    return score_split(model, split, stride=stride, windows=options.windows, **shared)


# A text that a model is scored on without having been trained on its source, cut by the tokenizer that there is.

WHOLE = "text"
"""The name of the one split of text files, which are scored whole."""


@dataclass(frozen=True)
class NamedSplit:
    """A split with its name, and the name of its text as a table shows it."""

    name: str
    text: str
    split: Split


def read_splits(cfg: DataConfig, names: Sequence[str], tokenizer: Tokenizer) -> Iterator[NamedSplit]:
    """Yield the text of ``cfg`` in tokens of ``tokenizer``: data.name=text whole, other sources by these splits.

    Only what is yielded is read. Raises UserError for a source, a file or a text that is not there, is empty or is no
    UTF-8.
    """
    if cfg.name in TASKS:
        raise UserError(f"data={cfg.name} is a task, and this run was trained on text; give a text")
    if cfg.name not in SOURCES:
        raise unknown("data source", cfg.name, SOURCES)
    source = SOURCES[cfg.name]
    if cfg.name == "text":
        source.check(cfg)
        tell_once(told_files(cfg))
        yield NamedSplit(WHOLE, corpus_name(cfg.path), _tokenised(whole_files(cfg), tokenizer))
        return
    source.check_splits(cfg, names)
    for name in names:
        read = read_split(cfg, name)
        source.confirm(cfg, {name: read})
        documents = source.documents(cfg, name, cache_root(cfg))
        yield NamedSplit(name, source.label(cfg, name, read), _tokenised(documents, tokenizer))


def _tokenised(documents: Iterator[Document], tokenizer: Tokenizer) -> Split:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokens.bin"
        counts = write_tokens(documents, tokenizer, file, lambda _: None)
        tokens = np.fromfile(file, token_dtype(tokenizer.vocab_size))
    if not counts["bytes"]:
        raise UserError("the text to score is empty; give one with words in it")
    return Split(tokens, counts["words"], counts["bytes"], counts["documents"])

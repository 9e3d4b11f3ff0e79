"""The `data` node of the configuration, of a text or a task; of a task what follows from its options."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments.data import tasks_base
from experiments.data.tasks_base import TASKS, Task
from experiments.system import paths
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.options import added, limited

tasks_base.discover()

PACKS = ("stream", "document")
NO_TOKENIZER = "none"
_OWN = ("tokenizer", "vocab_size", "seq_len")


def _as_values(node: Any) -> tuple[Any, ...]:
    """Pickled by its values: a worker that starts while somebody writes a task may know one more or one fewer."""
    return tasks_from, (dataclasses.asdict(node),)


Tasks = dataclasses.make_dataclass(
    "Tasks",
    [(name, task.config, dataclasses.field(default_factory=task.config)) for name, task in TASKS.items()],
    namespace={"__reduce__": _as_values},
)
Tasks.__module__ = __name__


def tasks_from(values: dict[str, Any]) -> Tasks:  # type: ignore[valid-type]
    """The options of all tasks from recorded ones; those of tasks that are no longer there are left out."""
    known = {name: options for name, options in values.items() if name in TASKS}
    return from_dict(Tasks, known, "data.tasks", recorded=True)


@dataclass
class DataConfig:
    """The text to train on, and how it is cut; or the synthetic task to train on.

    name: pydocs | wikitext103 | wikitext2 | text | hf, or a task (job=list names them).
    path: text: a file, a folder or a glob: plain text or tables (parquet, csv, tsv, jsonl), also compressed (.gz).
        wikitext: a folder of parquet in the public layout
        (`{train,validation,test}-*.parquet`, column `text`); None reads the hub.
    text_column: text: the column of a table that holds the texts, one document per row; None means `text`.
    dataset: hf: a data set of the Hugging Face hub, or a folder of one (parquet, JSON lines, CSV, arrow).
    config: hf: the configuration of the data set (null: its only one).
    split: hf: the split to train on (null: train); those called validation and test are scored, if there are any.
    column: hf: the column that holds the texts, one document per row (null: `text`).
    max_tokens: hf: read documents up to so many tokens, and up to a tenth of them of held-out splits; where the
        tokenizer is trained on the text (bpe), 4 bytes count as a token (null: all).
    train_path: wikitext: parquet file, folder or glob that replaces the training split.
    tokenizer: bytes | bpe (trained on the training split) | gpt2 | pretrained.
    vocab_size: vocabulary size of the trained bpe tokenizer.
    gpt2_path: folder with encoder.json and vocab.bpe, or vocab.json and merges.txt; None reads the hub.
    tokenizer_path: pretrained: a folder with tokenizer.json (Hugging Face's layout), or a run, whose tokenizer it is.
    pack: stream (windows of one long stream) | document (no attention across documents).
    seq_len: tokens of a sequence.
    batch_size: sequences of a micro-batch.
    cache_dir: folder for extracted text and tokens; None means the environment variable ARCHZOO_CACHE, or else
        `.cache/archzoo` in the repository.
    revision: commit of a data set on the hub; wikitext: None means the one this project was tested with; hf: None means
        the newest when it was first read, which names the run.
    tasks: options of every task; only those of the task in `name` count. They set vocabulary and sequence length, and
        keys of text do not apply.
    """

    name: str = "pydocs"
    path: str | None = None
    text_column: str | None = None
    train_path: str | None = None
    tokenizer: str = "bpe"
    vocab_size: int = limited(4096, least=1, most=1 << 24)
    gpt2_path: str | None = None
    tokenizer_path: str | None = added(None, before=None)
    pack: str = limited("stream", choices=PACKS)
    seq_len: int = limited(128, least=1, most=1 << 24)
    batch_size: int = limited(8, least=1, most=1 << 20)
    cache_dir: str | None = limited(None, check=paths.check_folder)
    revision: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    column: str | None = None
    max_tokens: int | None = limited(None, least=1)
    tasks: Tasks = dataclasses.field(default_factory=Tasks)  # type: ignore[valid-type]


OF_TEXT = {
    key: getattr(DataConfig, key)
    for key in (
        *("path", "text_column", "train_path", "gpt2_path", "tokenizer_path", "revision", "pack", *_OWN),
        *("dataset", "config", "split", "column", "max_tokens"),
    )
}
"""Keys of text at their defaults: what `data=TASK` sets beside the name, whatever size= says of them."""


def make_task(cfg: DataConfig) -> Task:
    """The task of a configuration. Raises UserError for options that cannot work."""
    return TASKS[cfg.name](getattr(cfg.tasks, cfg.name))


def resolve_task(cfg: DataConfig) -> DataConfig:
    """The configuration of a task with its vocabulary and length, and no tokenizer.

    Resolving again changes nothing. Raises UserError for options that cannot work, and for keys of text that are set.
    """
    task = make_task(cfg)
    settings = dict(zip(_OWN, (NO_TOKENIZER, task.vocab_size, task.seq_len), strict=True))
    for key, default in OF_TEXT.items():
        value = getattr(cfg, key)
        if value not in (default, settings.get(key)):
            instead = f", whose options are data.tasks.{cfg.name}" if key in settings else ""
            raise UserError(f"data.{key}={value} does not apply to data={cfg.name}{instead}; leave it out")
    return dataclasses.replace(cfg, **settings)

"""From the node `data` of a configuration to a task: its options, and keys of text that it has no use for."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.task_registry import TASKS, Task
from zoo.errors import UserError

NO_TOKENIZER = "none"
_OWN = ("tokenizer", "vocab_size", "seq_len")
_OF_TEXT = ("path", "train_path", "gpt2_path", "revision", "pack", *_OWN)


def make_task(cfg: DataConfig) -> Task:
    """The task of a configuration. Raises UserError for options that cannot work."""
    return TASKS[cfg.name](getattr(cfg.tasks, cfg.name))


def resolve_task(cfg: DataConfig) -> DataConfig:
    """The configuration with its task's vocabulary and length, and no tokenizer; of text as it is.

    Resolving again changes nothing. Raises UserError for options that cannot work, and for keys of text that are set.
    """
    if cfg.name not in TASKS:
        return cfg
    task = make_task(cfg)
    own = dict(zip(_OWN, (NO_TOKENIZER, task.vocab_size, task.seq_len), strict=True))
    for key in _OF_TEXT:
        value = getattr(cfg, key)
        if value not in (getattr(DataConfig, key), own.get(key)):
            instead = f": those of data.tasks.{cfg.name} decide it" if key in own else ""
            raise UserError(f"data.{key}={value} has no meaning with data={cfg.name}{instead}; leave it out")
    return dataclasses.replace(cfg, **own)


def choice(name: str) -> dict[str, Any]:
    """What `data=NAME` sets: the task, and keys of text at their defaults, whatever size= says of them."""
    return {"name": name, **{key: getattr(DataConfig, key) for key in _OF_TEXT}}

"""Text that a model is scored on without having been trained on its source: cut by a tokenizer that exists already."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.cache import cache_root
from experiments.data.config import DataConfig
from experiments.data.corpus import Split, tell_once, token_dtype, write_tokens
from experiments.data.sources import SOURCES, Document, read_split
from experiments.data.sources.text import corpus_name, told_files, whole_files
from experiments.data.tasks_base import TASKS
from zoo.errors import UserError, unknown
from zoo.tokenization import Tokenizer

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

"""From a configuration to a corpus: `check`, `fingerprint` (hash of text and tokenizer), `prepare` (tokens)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from experiments.data.cache import build_once, cache_root, content_hash, load_fact, store_fact
from experiments.data.config import PACKS, DataConfig
from experiments.data.corpus import (
    META,
    TOKENIZER,
    Corpus,
    corpus_problem,
    open_corpus,
    token_dtype,
    tokens_file,
    write_tokens,
)
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.task_options import resolve_task
from experiments.data.task_registry import TASKS
from experiments.data.task_set import TaskSet
from experiments.data.tokenization import TOKENIZERS
from zoo.errors import UserError, unknown

_CONTENTS_VERSION, _FINGERPRINT_VERSION = 1, 1
Contents = dict[str, dict]


def check(cfg: DataConfig) -> None:
    """Raise UserError for settings that cannot work and for text that is missing or too small. Writes nothing.

    Local text is read, unless an earlier `fingerprint` did. The network is not used: `fingerprint` and `prepare` find
    out whether the hub can be reached.
    """
    check_settings(cfg)
    if cfg.name in TASKS:
        TaskSet(cfg).batches(0).batch(0)
    elif SOURCES[cfg.name].at_hand:
        contents(cfg, keep=False)


def check_settings(cfg: DataConfig) -> None:
    """Raise UserError for settings that cannot work; reads no text."""
    if cfg.name not in (*SOURCES, *TASKS):
        raise unknown("data source", cfg.name, (*SOURCES, *TASKS))
    for key in ("seq_len", "batch_size"):
        if getattr(cfg, key) < 1:
            raise UserError(f"data.{key} must be at least 1, got {getattr(cfg, key)}")
    cache = cache_root(cfg)
    if cache.exists() and not cache.is_dir():
        raise UserError(f"the cache folder {cache} is a file; give a folder with data.cache_dir=...")
    if cfg.name in TASKS:
        resolve_task(cfg)
        return
    for kind, name, known in (("tokenizer", cfg.tokenizer, TOKENIZERS), ("packing", cfg.pack, PACKS)):
        if name not in known:
            raise unknown(kind, name, known)
    TOKENIZERS[cfg.tokenizer].check(cfg)
    SOURCES[cfg.name].check(cfg)


def contents(cfg: DataConfig, keep: bool = True) -> Contents:
    """For each split {"digest": SHA-256 of its documents in order, "bytes", "documents"}.

    The result of an earlier call is taken from the cache as long as the files have not changed. keep: write this one
    there. Raises UserError for text that cannot be read, and for a text too small for ``cfg.seq_len``.
    """
    stamp = SOURCES[cfg.name].stamp(cfg)
    file = cache_root(cfg) / "contents" / f"{content_hash([_CONTENTS_VERSION, cfg.name, stamp])}.json"
    found = load_fact(file) if stamp is not None else None
    if found is None:
        found = {split: _read(cfg, split) for split in SPLITS}
        if stamp is not None and keep:
            store_fact(file, found)
    # No tokenizer here makes more tokens than bytes, and one separator a document.
    check_sizes(cfg, {split: part["bytes"] + part["documents"] for split, part in found.items()}, "bytes")
    return found


def check_sizes(cfg: DataConfig, sizes: dict[str, int], unit: str) -> None:
    """Raise UserError unless training fills a window and the evaluation splits have something to score."""
    needed = cfg.seq_len + 1
    if sizes["train"] < needed or min(sizes.values()) < 2:
        raise UserError(
            f"the text is too small: training has {sizes['train']} {unit}, validation {sizes['validation']}, "
            f"test {sizes['test']} (document separators counted); data.seq_len={cfg.seq_len} needs at least "
            f"{needed} tokens of training text and some text in each split: give more text or a smaller "
            "data.seq_len"
        )


def _read(cfg: DataConfig, split: str) -> dict:
    digest, size, documents = hashlib.sha256(), 0, 0
    for document in SOURCES[cfg.name].documents(cfg, split, cache_root(cfg)):
        encoded = document.text.encode()
        digest.update(f"{len(encoded)} {document.rows}\n".encode() + encoded)
        size += len(encoded)
        documents += 1
    return {"digest": digest.hexdigest(), "bytes": size, "documents": documents}


def fingerprint(cfg: DataConfig) -> str:
    """Hash (32 hexadecimal digits) of the text and the tokenizer, or of the task: of what the model is trained on.

    It covers the text of each split in order, the split rule, and the tokenizer's kind, size and tables; not
    paths, nor how the tokens are cut (seq_len, batch_size, pack). The first call reads all text (and, for the
    hub, downloads it); later ones compare file times and are quick. Raises UserError as `check` does.
    """
    check_settings(cfg)
    return TaskSet(cfg).fingerprint if cfg.name in TASKS else _fingerprint(cfg, contents(cfg))


def prepare(cfg: DataConfig, progress: bool = True) -> Corpus | TaskSet:
    """The tokenised corpus, from the cache if it is there; of a task, the data set that draws its sequences.

    The cache folder is named by the fingerprint and made whole or not at all, once, however many processes
    ask. progress: show a bar on stderr (on a terminal) while tokenising. Raises UserError as `check` does,
    and when the hub cannot be reached, the cache cannot be written, or the text has too few tokens for
    ``seq_len``.
    """
    check_settings(cfg)
    if cfg.name in TASKS:
        return TaskSet(cfg)
    read = contents(cfg)
    key = _fingerprint(cfg, read)

    def build(folder: Path) -> None:
        _tokenise(cfg, read, key, folder, progress)

    folder = build_once(cache_root(cfg) / "corpora", key, build, corpus_problem)
    corpus = open_corpus(folder, cfg, SOURCES[cfg.name].labels(cfg))
    check_sizes(cfg, {name: len(split.tokens) for name, split in corpus.splits.items()}, "tokens")
    return corpus


def _fingerprint(cfg: DataConfig, read: Contents) -> str:
    digests = {split: read[split]["digest"] for split in SPLITS}
    return content_hash(
        [_FINGERPRINT_VERSION, SOURCES[cfg.name].rule, digests, TOKENIZERS[cfg.tokenizer].spec(cfg)]
    )


def _tokenise(cfg: DataConfig, read: Contents, key: str, folder: Path, progress: bool) -> None:
    """Fill a cache folder: tokens of every split, the tokenizer, and meta.json that says what they are."""
    source, cache = SOURCES[cfg.name], cache_root(cfg)

    def training_texts() -> Iterator[str]:
        return (document.text for document in source.documents(cfg, "train", cache))

    tokenizer = TOKENIZERS[cfg.tokenizer].make(cfg, training_texts, read["train"]["digest"], cache)
    bar = {"unit": "B", "unit_scale": True, "delay": 1, "disable": None if progress else True}
    total = sum(part["bytes"] for part in read.values())
    with tqdm(total=total, desc=f"tokenising {cfg.name}", **bar) as meter:
        splits = {
            split: write_tokens(
                source.documents(cfg, split, cache), tokenizer, tokens_file(folder, split), meter.update
            )
            for split in SPLITS
        }
    (folder / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
    files = [TOKENIZER, *(tokens_file(folder, split).name for split in SPLITS)]
    meta = {
        "fingerprint": key,
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "tokenizer": tokenizer.identity(),
        "splits": splits,
        "files": {name: (folder / name).stat().st_size for name in files},
    }
    (folder / META).write_text(json.dumps(meta, indent=1))

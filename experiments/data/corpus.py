"""A text as models are trained on it: checked, known by a hash of text and tokenizer, tokenised once into the cache.

`check`, `fingerprint` and `prepare` take a configuration's node `data`; of a synthetic task they answer, too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments.data.cache import build_once, cache_root, content_hash
from experiments.data.config import DataConfig, resolve_task
from experiments.data.sources import SOURCES, SPLITS, Contents, Document, check_sizes, contents, hub, refuse
from experiments.data.sources.base import file_state
from experiments.data.task_set import TaskSet
from experiments.data.tasks_base import TASKS
from experiments.data.tokenizers import LONGEST_WORD, TOKENIZERS, pieces
from experiments.system import paths
from zoo.errors import unknown
from zoo.files import read_json, require_file
from zoo.options import check_limits
from zoo.tokenization import Tokenizer, check_round_trip, from_json

META = "meta.json"
TOKENIZER = "tokenizer.json"
_BATCH_CHARACTERS = 1 << 21
_FINGERPRINT_VERSION = 1
_COUNTS = dict.fromkeys(("tokens", "words", "bytes", "documents"), range(2**63))
_DTYPES = ("uint16", "uint32")
_META = {"fingerprint": str, "dtype": str, "splits": dict.fromkeys(SPLITS, _COUNTS), "sha256": {str: str}}
_CUTTING = f"words cut at {LONGEST_WORD}"


@dataclass(frozen=True)
class Split:
    """One split of a corpus.

    tokens: read-only memory map, uint16 for vocabularies under 65,536, else uint32; every document is
        preceded by the tokenizer's ``bos_id``, so that every real token is predicted from something.
    n_words: whitespace-separated words plus one for each row or line end (WikiText's convention: 217,646 and
        245,569 for WikiText-103's validation and test).
    n_bytes: UTF-8 bytes of the text. n_documents: documents, each with one separator in ``tokens``.
    """

    tokens: np.ndarray
    n_words: int
    n_bytes: int
    n_documents: int


@dataclass(frozen=True)
class Corpus:
    """Splits "train", "validation" and "test", their tokenizer, and the hash of text and tokenizer.

    read: the text that was read, by split; origin: where it came from (`Source.origin`).
    """

    splits: dict[str, Split]
    tokenizer: Tokenizer
    fingerprint: str
    labels: dict[str, str]
    config: DataConfig
    read: Contents
    origin: dict[str, str]

    @property
    def document_bos(self) -> int | None:
        """The separator, which starts a new sequence, where documents are packed; None where pack=stream."""
        return self.tokenizer.bos_id if self.config.pack == "document" else None

    @property
    def vocab_size(self) -> int:
        """Tokens that the model must know."""
        return self.tokenizer.vocab_size

    @property
    def card(self) -> dict[str, Any]:
        """Return what a model's card says of the text that it was trained on."""
        return {"tokenizer": self.tokenizer.to_json()}

    def describe(self) -> dict[str, Any]:
        """The node `data` of a run's summary. Tokens count separators: tokens − documents are the text's."""
        return {
            "name": self.config.name,
            **self.labels,
            **self.origin,
            "tokenizer": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
            "seq_len": self.config.seq_len,
            "pack": self.config.pack,
            "fingerprint": self.fingerprint,
            "unigram_entropy": unigram_entropy(self.splits["train"].tokens, self.tokenizer.vocab_size),
            "splits": {
                name: {
                    "tokens": len(split.tokens),
                    "words": split.n_words,
                    "bytes": split.n_bytes,
                    "documents": split.n_documents,
                    "sha256": self.read[name]["digest"],
                }
                for name, split in self.splits.items()
            },
        }


def unigram_entropy(tokens: np.ndarray, vocab_size: int) -> float:
    """−Σ p·ln p in nats a token, p the tokens' shares: the loss of predicting each token by its frequency."""
    counts = np.bincount(tokens, minlength=vocab_size)
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def tokens_file(folder: Path, split: str) -> Path:
    """The file of the tokens of ``split`` in the cache folder of a corpus."""
    return folder / f"tokens-{split}.bin"


def token_dtype(vocab_size: int) -> np.dtype:
    """The dtype of token ids: uint16 for vocabularies under 65,536 entries, else uint32."""
    return np.dtype(np.uint16 if vocab_size < 65536 else np.uint32)


def write_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, file: Path, progress: Callable[[int], object]
) -> dict[str, int]:
    """Write every document, preceded by ``bos_id``, to ``file``; return tokens, words, bytes and documents.

    progress: called with the UTF-8 bytes of each document read. Raises UserError where some of the text, a piece of
    each batch, does not come back from its tokens.
    """
    check_round_trip(tokenizer)
    counts = dict.fromkeys(("tokens", "words", "bytes", "documents"), 0)
    dtype = token_dtype(tokenizer.vocab_size)
    separator = np.array([tokenizer.bos_id], dtype=dtype)
    with file.open("wb") as out:
        waiting: list[str | None] = []

        def flush() -> None:
            texts = [text for text in waiting if text is not None]
            encoded = tokenizer.encode_batch(texts)
            if texts:
                check_round_trip(tokenizer, texts[0], encoded[0])
            following = iter(encoded)
            for text in waiting:
                ids = separator if text is None else next(following).astype(dtype)
                counts["tokens"] += len(ids)
                out.write(ids.tobytes())
            waiting.clear()

        pending = 0
        for document in documents:
            waiting.append(None)
            for piece in [document.text] if tokenizer.whole_texts else pieces(document.text):
                waiting.append(piece)
                pending += len(piece)
                if pending >= _BATCH_CHARACTERS:
                    flush()
                    pending = 0
            size = len(document.text.encode())
            counts["words"] += document.n_words
            counts["bytes"] += size
            counts["documents"] += 1
            progress(size)
        flush()
        out.flush()
        os.fsync(out.fileno())
    return counts


def open_corpus(folder: Path, cfg: DataConfig, read: Contents) -> Corpus:
    """The corpus of what was read, in a finished cache folder, its tokens memory-mapped."""
    meta = read_json(folder / META, _META)
    splits = {}
    for name in SPLITS:
        counts = meta["splits"][name]
        tokens = np.memmap(tokens_file(folder, name), dtype=meta["dtype"], mode="r")
        splits[name] = Split(tokens, counts["words"], counts["bytes"], counts["documents"])
    tokenizer = from_json((folder / TOKENIZER).read_text(encoding="utf-8"))
    source = SOURCES[cfg.name]
    return Corpus(
        splits, tokenizer, meta["fingerprint"], source.labels(cfg, read), cfg, read, source.origin(cfg)
    )


def corpus_problem(folder: Path) -> str | None:
    """The reason why a cache folder is damaged (its files disagree with meta.json), or None.

    One of an earlier version, which kept sizes alone, counts as damaged: other tokens of equal size look like the right
    ones.
    """
    try:
        meta = read_json(folder / META, _META)
        if meta["fingerprint"] != folder.name:
            return f"{META} is of another text"
        for split, counts in meta["splits"].items():
            size = require_file(tokens_file(folder, split)).st_size
            if meta["dtype"] not in _DTYPES or size != counts["tokens"] * np.dtype(meta["dtype"]).itemsize:
                return f"{META} does not describe {tokens_file(folder, split).name}"
        for name in (TOKENIZER, *(tokens_file(folder, split).name for split in SPLITS)):
            if _digest(folder / name, *file_state(folder / name)) != meta["sha256"][name]:
                return f"{name} does not hold what was written"
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, LookupError) as error:
        return f"{META}: {error}"
    return None


@functools.lru_cache(maxsize=256)
def _digest(file: Path, *_state: int) -> str:
    """SHA-256 of a file, read once a process as long as its state is the same. Raises OSError."""
    require_file(file)
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check(cfg: DataConfig) -> None:
    """Raise UserError for settings that cannot work and for text that is missing or too small. Writes nothing.

    Local text is read, unless an earlier `fingerprint` did. The network is not used: `fingerprint` and `prepare` find
    out whether the hub can be reached.
    """
    check_settings(cfg)
    if cfg.name in TASKS:
        TaskSet(cfg).batches(0).batch(0)
    elif SOURCES[cfg.name].at_hand:
        _tell(cfg, contents(cfg, keep=False))


def check_settings(cfg: DataConfig) -> None:
    """Raise UserError for settings that cannot work; reads no text."""
    if cfg.name not in (*SOURCES, *TASKS):
        raise unknown("data source", cfg.name, (*SOURCES, *TASKS))
    check_limits(cfg, "data.")
    cache = cache_root(cfg)
    if not cache.is_dir():  # one that is there may be read-only and hold what is needed
        paths.check_writable(cache, "data.cache_dir" if cfg.cache_dir else "ARCHZOO_CACHE")
    if cfg.name in TASKS:
        resolve_task(cfg)
        return
    if cfg.tokenizer not in TOKENIZERS:
        raise unknown("tokenizer", cfg.tokenizer, TOKENIZERS)
    TOKENIZERS[cfg.tokenizer].check(cfg)
    if cfg.name != "hf":
        refuse(cfg, *hub.KEYS)
    SOURCES[cfg.name].check(cfg)


def fingerprint(cfg: DataConfig) -> str:
    """Hash (32 hexadecimal digits) of the text and the tokenizer, or of the task: of what the model is trained on.

    It covers the text of each split in order, the split rule, and the tokenizer's kind, size and tables; not
    paths, nor how the tokens are cut (seq_len, batch_size, pack). The first call reads all text (and, for the
    hub, downloads it); later ones compare file times and are quick. Raises UserError as `check` does.
    """
    check_settings(cfg)
    if cfg.name in TASKS:
        return TaskSet(cfg).fingerprint
    read = contents(cfg)
    _tell(cfg, read)
    return _fingerprint(cfg, read)


def prepare(cfg: DataConfig, progress: bool = True) -> Corpus | TaskSet:
    """The tokenised corpus, from the cache if it is there; of a task, the data set that draws its sequences.

    The cache folder is named by the fingerprint and made whole or not at all, once, however many processes
    ask. progress: show bars on stderr while a tokenizer is trained and (on a terminal) used. Raises UserError as
    `check` does, and when the hub cannot be reached, the cache cannot be written, a tokenizer does not give back the
    text, or the text has too few tokens for ``seq_len``.
    """
    check_settings(cfg)
    if cfg.name in TASKS:
        return TaskSet(cfg)
    read = contents(cfg)
    if progress:
        _tell(cfg, read)
    key = _fingerprint(cfg, read)

    def build(folder: Path) -> None:
        _tokenise(cfg, read, key, folder, progress)

    folder = build_once(cache_root(cfg) / "corpora", key, build, corpus_problem)
    corpus = open_corpus(folder, cfg, read)
    check_sizes(cfg, {name: len(split.tokens) for name, split in corpus.splits.items()}, "tokens")
    return corpus


def _tell(cfg: DataConfig, read: Contents) -> None:
    line = SOURCES[cfg.name].told(cfg, read)
    if line:
        tell_once(line)


@functools.cache
def tell_once(line: str) -> None:
    """Print a notice on stderr, once a process."""
    print(f"notice: {line}", file=sys.stderr, flush=True)


def _fingerprint(cfg: DataConfig, read: Contents) -> str:
    digests = {split: read[split]["digest"] for split in SPLITS}
    facts = [_FINGERPRINT_VERSION, SOURCES[cfg.name].rule, digests, TOKENIZERS[cfg.tokenizer].spec(cfg)]
    # Where no word is long, its tokens are those of before words were cut.
    cut = [_CUTTING] * (cfg.tokenizer != "bytes" and any(read[split]["long_words"] for split in SPLITS))
    return content_hash([*facts, *cut])


def _tokenise(cfg: DataConfig, read: Contents, key: str, folder: Path, progress: bool) -> None:
    """Fill a cache folder: tokens of every split, the tokenizer, and meta.json that says what they are."""
    source, cache = SOURCES[cfg.name], cache_root(cfg)

    def training_texts() -> Iterator[str]:
        return (document.text for document in source.documents(cfg, "train", cache))

    training = read["train"]["digest"]
    if read["train"]["long_words"]:
        training = content_hash([training, _CUTTING])
    tokenizer = TOKENIZERS[cfg.tokenizer].make(cfg, training_texts, training, cache, progress)
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
        "sha256": {name: _digest(folder / name, *file_state(folder / name)) for name in files},
    }
    (folder / META).write_text(json.dumps(meta, indent=1))

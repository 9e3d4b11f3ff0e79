"""Any data set of the package `datasets`: of the Hugging Face hub, or a folder (parquet, JSON lines, CSV, arrow).

Its rows are streamed once into the cache, as tables of texts that are then read as one's own text is (text.py), and no
more of them than data.max_tokens asks for.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.data.cache import build_once, cache_root, content_hash, load_fact, store_fact
from experiments.data.config import DataConfig
from experiments.data.sources.base import Contents, Document, refuse, register_source
from experiments.data.sources.text import Text
from experiments.data.tokenizers import TOKENIZERS
from zoo.errors import UserError, unknown

KEYS = ("dataset", "config", "split", "column", "max_tokens")
"""Keys that belong to this source alone."""
HELD_OUT = ("validation", "test")
HELD_OUT_SHARE = 10
"""A held-out split of the data set gives at most one token for so many of data.max_tokens."""
BYTES_A_TOKEN = 4
"""What counts as a token for data.max_tokens where the tokenizer is trained on the text."""
_COLUMN, _SPLIT = "text", "train"


@register_source("hf")
class HuggingFace(Text):
    """Rows of one column. Splits of the data set that are called validation and test are taken, others as of Text."""

    rule = f"hf 1: published validation and test, else {Text.rule}"
    at_hand = False

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings of other sources, and where no data set is named."""
        refuse(cfg, "path", "train_path", "text_column")
        if not cfg.dataset:
            raise UserError(
                "data=hf needs data.dataset=NAME, of the Hugging Face hub, or a folder of a data set"
            )
        if Path(cfg.dataset).expanduser().is_file():
            raise UserError(
                f"data.dataset={cfg.dataset} is a file; give its folder, or data=text data.path={cfg.dataset}"
            )
        if is_local(cfg) and cfg.revision is not None:
            raise UserError(
                "data.revision is a commit on the hub, and data.dataset is local; leave out one of the two"
            )

    def stamp(self, cfg: DataConfig) -> dict[str, Any]:
        """What decides the rows that are read."""
        return {"rule": self.rule, "rows": _key(cfg)}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The documents of a split, or its part of each."""
        return super().documents(_as_text(cfg, cache), split, cache)

    def label(self, cfg: DataConfig, split: str, read: dict | None = None) -> str:
        """The name of the data set, with the split; of a folder its name."""
        name = Path(cfg.dataset).expanduser().absolute().name if is_local(cfg) else cfg.dataset
        return " ".join(filter(None, [name, cfg.config, f"({split} part)"]))

    def origin(self, cfg: DataConfig) -> dict[str, str]:
        """The column; of the hub name, configuration, split and commit."""
        origin = {"column": cfg.column or _COLUMN, "split": cfg.split or _SPLIT}
        return origin if is_local(cfg) else {**origin, "dataset": cfg.dataset, "revision": revision(cfg)}

    def told(self, cfg: DataConfig, read: Contents) -> str:
        """What was read, and how to get the same again."""
        pin = "" if is_local(cfg) else f" at data.revision={revision(cfg)}"
        documents = ", ".join(f"{part['documents']:,} {split}" for split, part in read.items())
        return f"data.dataset={cfg.dataset}{pin}, column '{cfg.column or _COLUMN}'; documents: {documents}"


def is_local(cfg: DataConfig) -> bool:
    """Return whether the data set is a folder of this machine."""
    return Path(cfg.dataset).expanduser().is_dir()


def pinned(cfg: DataConfig) -> DataConfig:
    """The configuration with the commit of a data set on the hub as its revision; of a folder as it is.

    Raises UserError for settings that cannot work, and where the hub cannot be asked.
    """
    HuggingFace().check(cfg)
    if is_local(cfg):
        return cfg
    return dataclasses.replace(cfg, revision=revision(cfg))


def revision(cfg: DataConfig) -> str:
    """The commit of a data set on the hub, of data.revision or of its main branch; the hub is asked once.

    Raises UserError where it cannot be asked.
    """
    if re.fullmatch("[0-9a-f]{40}", cfg.revision or ""):
        return str(cfg.revision)
    place = cache_root(cfg) / "datasets" / f"{content_hash([cfg.dataset, cfg.revision])}.json"
    fact = load_fact(place)
    if fact is None:
        from huggingface_hub import HfApi

        try:
            fact = HfApi().dataset_info(cfg.dataset, revision=cfg.revision).sha
        except Exception as error:  # of the network's library, which are no OSErrors
            raise _unreadable(cfg, error) from error
        store_fact(place, fact)
    return fact


def _key(cfg: DataConfig) -> str:
    """The name of the folder of rows in the cache."""
    if is_local(cfg):
        folder = Path(cfg.dataset).expanduser().absolute()
        files = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
        where = [str(folder), [[str(path), info.st_size, info.st_mtime_ns] for path, info in files]]
    else:
        where = [cfg.dataset, revision(cfg)]
    counted = None if cfg.max_tokens is None else [cfg.max_tokens, _counts_as(cfg)]
    return content_hash([where, cfg.config, cfg.split or _SPLIT, cfg.column or _COLUMN, counted])


def _counts_as(cfg: DataConfig) -> Any:
    return cfg.tokenizer if cfg.tokenizer == "bpe" else TOKENIZERS[cfg.tokenizer].spec(cfg)


def _as_text(cfg: DataConfig, cache: Path) -> DataConfig:
    """The rows in the cache, streamed there where they are not, as a text of one's own."""
    folder = build_once(
        cache / "datasets",
        _key(cfg),
        lambda place: _stream(cfg, place),
        lambda place: None if (place / "train.jsonl").is_file() else "train.jsonl is missing",
    )
    return dataclasses.replace(
        cfg, name="text", path=str(folder), text_column=_COLUMN, revision=None, **dict.fromkeys(KEYS)
    )


def _stream(cfg: DataConfig, folder: Path) -> None:
    """Write the rows of the training split and of held-out ones, each a file."""
    counts = _counter(cfg)
    try:
        splits = _open(cfg)
        wanted = cfg.split or _SPLIT
        if wanted not in splits:
            raise unknown("data.split", wanted, sorted(splits))
        for split in (wanted, *(name for name in HELD_OUT if name in splits and name != wanted)):
            share = 1 if split == wanted else HELD_OUT_SHARE
            limit = None if cfg.max_tokens is None else max(1, cfg.max_tokens // share)
            name = "train" if split == wanted else split
            texts = _texts(cfg, splits[split])
            if not _write(texts, folder / f"{name}.jsonl", limit, counts, f"reading {cfg.dataset} {split}"):
                (folder / f"{name}.jsonl").unlink()
    except UserError:
        raise
    except (
        Exception
    ) as error:  # the library and what it calls raise many kinds, for files and for the network
        raise _unreadable(cfg, error) from error
    if not (folder / "train.jsonl").is_file():
        raise UserError(
            f"data.dataset={cfg.dataset} has no text in column '{cfg.column or _COLUMN}' of {wanted}"
        )


def _open(cfg: DataConfig) -> dict[str, Iterable[dict[str, Any]]]:
    """The rows of every split of the data set, to be streamed."""
    import datasets

    place = Path(cfg.dataset).expanduser()
    if is_local(cfg) and any((place / x).is_file() for x in ("state.json", "dataset_dict.json")):
        dataset = datasets.load_from_disk(str(place))
        return dict(dataset) if isinstance(dataset, dict) else {_SPLIT: dataset}
    pinned = {} if is_local(cfg) else {"revision": revision(cfg)}
    return dict(datasets.load_dataset(str(place), cfg.config, streaming=True, **pinned))


def _texts(cfg: DataConfig, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    column = cfg.column or _COLUMN
    for row in rows:
        if column not in row:
            raise unknown(f"data.column, a column of {cfg.dataset}", column, list(row))
        if row[column] is not None and not isinstance(row[column], str):
            raise UserError(
                f"data.column={column} of {cfg.dataset} holds no text but {type(row[column]).__name__}; its columns: "
                f"{', '.join(row)}"
            )
        if row[column] and row[column].strip():
            yield row[column]


def _counter(cfg: DataConfig) -> Callable[[str], int]:
    """Tokens of a document, its separator included."""
    if cfg.max_tokens is None:
        return lambda text: 0
    if cfg.tokenizer == "bpe":
        return lambda text: -(-len(text.encode()) // BYTES_A_TOKEN) + 1
    tokenizer = TOKENIZERS[cfg.tokenizer].make(cfg, lambda: (), "", cache_root(cfg))
    return lambda text: len(tokenizer.encode_batch([text])[0]) + 1


def _write(
    texts: Iterable[str], file: Path, limit: int | None, count: Callable[[str], int], what: str
) -> int:
    """Write documents until they have so many tokens; returns their number."""
    tokens = documents = 0
    with file.open("w", encoding="utf-8") as out, tqdm(desc=what, unit=" documents", disable=None) as bar:
        for text in texts:
            out.write(json.dumps({_COLUMN: text}) + "\n")
            tokens, documents = tokens + count(text), documents + 1
            bar.update()
            if limit is not None and tokens >= limit:
                break
    return documents


def _unreadable(cfg: DataConfig, error: Exception) -> UserError:
    words = " ".join(str(error).split())[:200]
    return UserError(
        f"cannot read data.dataset={cfg.dataset} ({words}); check the name, data.config and the network (once read it "
        "stays in the cache), or download it and give data.dataset=FOLDER"
    )

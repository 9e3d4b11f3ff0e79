"""Small texts to make corpora from. Everything lives under tmp_path, the cache too."""

from pathlib import Path

import pytest
from support.sample_text import prose

from experiments.data import DataConfig


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "book.txt"
    file.write_text(prose(200), encoding="utf-8")
    return file


@pytest.fixture
def config(text_file: Path, cache: Path):
    """A factory of configurations for `text_file`; keywords override."""

    def make(**changes) -> DataConfig:
        settings = {
            "name": "text",
            "path": str(text_file),
            "tokenizer": "bytes",
            "seq_len": 32,
            "batch_size": 4,
        }
        return DataConfig(**{**settings, "cache_dir": str(cache), **changes})

    return make


@pytest.fixture
def article_rows():
    """Rows in WikiText's layout: n articles, with a table legend that only looks like a heading."""

    def make(n: int, seed: int = 0) -> list[str]:
        rows = []
        for i in range(n):
            rows += ["", f" = Title {seed} {i} = \n", "", f" {prose(1, 100 * seed + i).strip()} \n"]
            rows += ["", " = = Section = = \n", "", f" text {i} @-@ number \n", " = National record = \n"]
        return rows

    return make


@pytest.fixture
def wikitext_folder(tmp_path: Path, article_rows) -> Path:
    """A folder as the public data set lays it out, the training split in two files."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "wikitext"
    folder.mkdir()
    train = article_rows(12, seed=1)
    parts = {
        "train-00000-of-00002": train[:50],
        "train-00001-of-00002": train[50:],
        "validation-00000-of-00001": article_rows(3, seed=2),
        "test-00000-of-00001": article_rows(4, seed=3),
    }
    for name, rows in parts.items():
        pq.write_table(pa.table({"text": rows}), folder / f"{name}.parquet")
    return folder

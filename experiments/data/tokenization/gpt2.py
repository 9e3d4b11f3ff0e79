"""GPT-2's BPE, 50,257 entries (Radford et al. 2019; its files are under the MIT licence)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import models

from experiments.data.cache import content_hash
from experiments.data.config import DataConfig
from experiments.data.tokenization.base import register_tokenizer
from experiments.data.tokenization.bpe import assemble
from zoo.errors import UserError
from zoo.tokenization import SEPARATOR, BytePairTokenizer, Tokenizer

_REPOSITORY = "gpt2"
_FILE_PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


@register_tokenizer("gpt2")
class _GPT2:
    def check(self, cfg: DataConfig) -> None:
        if cfg.gpt2_path is not None:
            read_tables(*_local(cfg.gpt2_path))

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        vocabulary, merges = read_tables(*_files(cfg))
        return {"kind": "gpt2", "tables": content_hash([vocabulary, merges])}

    def make(
        self, cfg: DataConfig, texts: Callable[[], Iterable[str]], training: str, cache: Path
    ) -> Tokenizer:
        vocabulary, merges = read_tables(*_files(cfg))
        return BytePairTokenizer("gpt2", assemble(models.BPE(vocab=vocabulary, merges=merges)))


def _files(cfg: DataConfig) -> tuple[Path, Path]:
    return _hub() if cfg.gpt2_path is None else _local(cfg.gpt2_path)


def _local(place: str) -> tuple[Path, Path]:
    folder = Path(place).expanduser()
    for vocabulary, merges in _FILE_PAIRS:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return folder / vocabulary, folder / merges
    raise UserError(
        f"data.gpt2_path={place} must be a folder that holds encoder.json and vocab.bpe (OpenAI's names) or "
        "vocab.json and merges.txt"
    )


def _hub() -> tuple[Path, Path]:
    local = (
        "give a folder that holds encoder.json and vocab.bpe with data.gpt2_path=FOLDER, "
        "or use data.tokenizer=bpe"
    )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UserError(
            f"GPT-2's tokenizer from the hub needs the package huggingface_hub; {local}"
        ) from error

    def get(offline: bool) -> tuple[Path, Path]:
        vocabulary, merges = _FILE_PAIRS[1]
        return tuple(
            Path(hf_hub_download(_REPOSITORY, name, local_files_only=offline))
            for name in (vocabulary, merges)
        )

    try:
        return get(offline=True)
    except OSError:  # not fetched yet
        try:
            return get(offline=False)
        except OSError as error:
            words = str(error).splitlines()[0]
            raise UserError(f"cannot get GPT-2's tokenizer from the hub: {words}; {local}") from error


def read_tables(vocabulary: Path, merges: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (token to id) and merges, in order. Raises UserError if the files are not GPT-2's."""
    try:
        table = json.loads(vocabulary.read_text(encoding="utf-8"))
        lines = merges.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read GPT-2's tables {vocabulary} and {merges}: {error}") from error
    if not isinstance(table, dict) or SEPARATOR not in table:
        raise UserError(f"{vocabulary} is no GPT-2 vocabulary: it has no entry {SEPARATOR}")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    bad = next((pair for pair in pairs if len(pair) != 2 or "".join(pair) not in table), None)
    if bad is not None:
        raise UserError(f"{merges} does not belong to {vocabulary}: it has the merge {' '.join(bad)!r}")
    return table, pairs

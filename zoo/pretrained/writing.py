"""A model of this project as a folder in Hugging Face's layout, whole or not at all.

As one of the published families where it computes the same (zoo.pretrained.families); else as model_type="archzoo",
which transformers loads by zoo.hf: by itself where that was imported, or by the folder's loader with trust_remote_code.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from zoo.errors import UserError
from zoo.files import write_atomic, write_json
from zoo.io import card, write_weights
from zoo.model import LanguageModel
from zoo.pretrained.families import FAMILIES, Family, family_of
from zoo.pretrained.folder import CONFIG, INDEX, TOKENIZER, WEIGHTS
from zoo.tokenization import Tokenizer

LOADER = "modeling_archzoo.py"
README = "README.md"
LARGEST = 5 * 10**9
"""Bytes of a file of weights, above which another one begins."""

CHECKOUT = "zoo"
"""The package in a checkout; by this name in the wheel too, which renames packages in its sources."""
LOADER_TEXT = f'''"""Loads this model where Archzoo is installed: from_pretrained(FOLDER, trust_remote_code=True)."""

try:
    from archzoo.zoo.hf import ArchzooConfig, ArchzooForCausalLM
except ModuleNotFoundError:  # a checkout
    from {CHECKOUT}.hf import ArchzooConfig, ArchzooForCausalLM

__all__ = ["ArchzooConfig", "ArchzooForCausalLM"]
'''


def write_folder(
    model: LanguageModel,
    out: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    readme: str = "",
    family: str | None = None,
    largest: int = LARGEST,
) -> tuple[str, str]:
    """Write a model into a new folder. Returns its model_type, and why it is no family's, "" where it is one.

    family: the model_type to write, "archzoo" or one of FAMILIES (None: the family's where there is one). largest:
    bytes of a file of weights. Raises UserError where the folder is there already, and for a family that cannot hold
    the model, which says what of it.
    """
    out = Path(out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists; give a new folder, or remove it")
    chosen, why = _chosen(model, family)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        ids = dict.fromkeys(keys, None if tokenizer is None else tokenizer.bos_id)
        values = _config(model) if chosen is None else chosen.published_config(model)
        write_json(partial / CONFIG, {**values, **ids, "dtype": _dtype(model)})
        write_json(partial / "generation_config.json", ids)
        _write_weights(partial, _weights(model, chosen), largest)
        if chosen is None:
            write_atomic(partial / LOADER, LOADER_TEXT)
        if tokenizer is not None:
            _write_tokenizer(partial, tokenizer, model.seq_len)
        if readme:
            write_atomic(partial / README, readme)
        if out.is_dir():
            out.rmdir()
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return "archzoo" if chosen is None else chosen.model_type, why


def _chosen(model: LanguageModel, wanted: str | None) -> tuple[Family | None, str]:
    if wanted == "archzoo":
        return None, ""
    family, why = family_of(model, FAMILIES if wanted is None else [wanted])
    if wanted is not None and family is None:
        raise UserError(
            f"model_type={wanted} cannot hold this model ({why}); leave family out to write model_type=archzoo"
        )
    return family, why


def _config(model: LanguageModel) -> dict[str, Any]:
    """config.json of model_type="archzoo"; the model's own description is its entry `archzoo`."""
    return {
        "architectures": ["ArchzooForCausalLM"],
        "model_type": "archzoo",
        "auto_map": {
            "AutoConfig": f"{Path(LOADER).stem}.ArchzooConfig",
            "AutoModelForCausalLM": f"{Path(LOADER).stem}.ArchzooForCausalLM",
        },
        "archzoo": card(model),
        "vocab_size": model.vocab_size,
        "hidden_size": model.config.d_model,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": model.config.n_heads,
        "max_position_embeddings": model.seq_len,
        "tie_word_embeddings": False,
    }


def _dtype(model: LanguageModel) -> str:
    return str(model.embedding.weight.dtype).removeprefix("torch.")


def _weights(model: LanguageModel, family: Family | None) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by the name that it has there."""
    state = model.state_dict()
    if family is None:
        yield from ((f"model.{name}", x) for name, x in state.items())
        return
    for link in family.links(model):
        yield from zip(link.theirs, link.write(*(state[name] for name in link.ours)), strict=True)


def _write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]], largest: int) -> None:
    """Write files of at most so many bytes, one after the other, and an index where there are several."""
    shards: list[list[str]] = []
    waiting: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        # Copies of their own, or parts of one tensor would pass for one that is written twice.
        held = {name: x.detach().cpu().clone().contiguous() for name, x in waiting.items()}
        write_weights(folder / f"shard-{len(shards)}", held, {"format": "pt"})
        shards.append(list(waiting))
        waiting.clear()

    for name, x in weights:
        if waiting and sum(y.nbytes for y in waiting.values()) + x.nbytes > largest:
            flush()
        waiting[name] = x
        total += x.nbytes
    flush()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / WEIGHTS)
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for i, name in enumerate(names):
        (folder / f"shard-{i}").rename(folder / name)
    where = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, seq_len: int) -> None:
    """tokenizer.json and its configuration, with which a separator that a text spells out stays text."""
    text, separator = tokenizer.published()
    write_atomic(folder / TOKENIZER, text)
    config: Mapping[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": separator,
        "eos_token": separator,
        "pad_token": separator,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": seq_len,
    }
    write_atomic(folder / "tokenizer_config.json", json.dumps(config, indent=1, ensure_ascii=False))

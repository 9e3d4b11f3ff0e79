"""Every option of a registered block at other values than its default, found from its config dataclass alone."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import recorded
from zoo import ModelConfig, registry
from zoo.errors import UserError
from zoo.model import on_meta

WIDTH, HEADS, SEQ_LEN, VOCAB = 24, 6, 32, 11
OUT_OF_RANGE = {int: (0, -1), float: (0.0, -1.0, float("nan"), float("inf")), str: ("none of these",)}


def recorded_blocks(folder: Path) -> list[tuple[str, str]]:
    """(kind, name) of the registered blocks with a recording in `folder`; of all where recordings are written."""
    blocks = [(kind, name) for kind in registry.KINDS for name in registry.blocks(kind)]
    return [block for block in blocks if recorded.recording or (folder / f"{'-'.join(block)}.txt").exists()]


def options(kind: str, name: str) -> list[dataclasses.Field]:
    return list(dataclasses.fields(registry.get(kind, name).config))


def config(kind: str, name: str, **changed: Any) -> ModelConfig:
    """A small model with that block, whose options are the defaults but for those named."""
    block = registry.get(kind, name)
    out = ModelConfig(
        d_model=WIDTH, n_heads=HEADS, depth=1, pattern=block.word if block.kind == "mixer" else "F"
    )
    node = out.mixers if kind == "mixer" else getattr(out, kind)
    setattr(node, name, dataclasses.replace(getattr(node, name), **changed))
    if kind != "mixer":
        node.name = name
    return out


def refusal(kind: str, name: str, **changed: Any) -> str | None:
    """What the model says to these options where it does not take them."""
    try:
        on_meta(config(kind, name, **changed), vocab_size=VOCAB, seq_len=SEQ_LEN)
    except UserError as error:
        return str(error)
    return None


def types_of(kind: str, name: str) -> dict[str, set[type]]:
    """The types that each option may have, without None."""
    hints = typing.get_type_hints(registry.get(kind, name).config)
    return {
        option.name: {
            x
            for x in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
            if x is not type(None)
        }
        for option in options(kind, name)
        for hint in [hints[option.name]]
    }


def alternatives(kind: str, name: str) -> Iterator[tuple[str, Any]]:
    """(option, value) for a value beside the default that the model takes, None among them."""
    kinds = types_of(kind, name)
    for option in options(kind, name):
        default = getattr(registry.get(kind, name).config(), option.name)
        candidates = _candidates(kind, name, option.name, kinds[option.name], default)
        taken = [
            value
            for value in dict.fromkeys(candidates)
            if value != default and refusal(kind, name, **{option.name: value}) is None
        ]
        # Words are different ways, numbers more or less of the same.
        yield from ((option.name, value) for value in (taken if str in kinds[option.name] else taken[:1]))


def _candidates(kind: str, name: str, option: str, kinds: set[type], default: Any) -> list[Any]:
    if bool in kinds:
        return [not default]
    if str in kinds:
        said = refusal(kind, name, **{option: "none of these"}) or ""
        found = re.search(r"must be one of (.*), not", said)
        return found.group(1).split(", ") if found else []
    if int in kinds and float not in kinds:
        return [3, 2, 6, 4, 1] if default is None else [2 * default, default + 1, 1]
    return [0.35, 0.2] if default is None else [3 * default, 0.5 * default, 0.35]


def out_of_range(kind: str, name: str) -> Iterator[tuple[str, Any]]:
    """(option, value) for values that an option of its type can have, and hardly makes sense with."""
    for option, kinds in types_of(kind, name).items():
        for kind_of_value in kinds:
            yield from ((option, value) for value in OUT_OF_RANGE.get(kind_of_value, ()))

"""Files that are written whole or not at all, files from outside, and checkpoints as folders of shards."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import types
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def write_atomic(path: Path, content: bytes | memoryview | str | Callable[[Path], object]) -> None:
    """Put content at path by an atomic rename: a reader sees the old file or the new one, never a part.

    content: or a function that writes it to the path that it is given.
    Raises OSError (a full disk, say) with the old file intact and no partial file left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            if not callable(data):
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        if callable(data):
            mode = os.stat(partial).st_mode
            data(partial)
            with open(partial, "rb+") as file:
                os.fchmod(file.fileno(), mode)  # safetensors leaves a file that its owner alone can read
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write plain values as readable JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


# Files from outside: a run, a cache or a tokenizer may come from a stranger, or be damaged.

LARGEST = 2**30
"""Bytes above which no file is read whole: the largest that the program writes have some millions."""


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file. Raises OSError as `require_file`, and above `largest` bytes."""
    if (size := require_file(path).st_size) > largest:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than any such file", str(path))
    return path.read_bytes()


def require_file(path: Path) -> os.stat_result:
    """The state of a regular file. Raises OSError for anything else: who reads a pipe or a device waits for ever."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return info


def read_json(path: Path, schema: Any = None, largest: int = LARGEST) -> Any:
    """What a JSON file holds. Raises OSError as `read_bytes`, and ValueError for no JSON and another schema (`fit`)."""
    try:
        found = json.loads(read_bytes(path, largest).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if schema is not None:
        fit(found, schema)
    return found


def fit(value: Any, schema: Any, key: str = "") -> None:
    """Raise ValueError, which names the key, unless a value that was read has a schema.

    schema: a type or a union of types (a bool is no int, an int is a float, nan and infinity are none), a range of
    whole numbers, [schema] of every item, {str: schema} of every value, or {key: schema} of an object, which may have
    other keys; "key?" may be missing.
    """
    if isinstance(schema, dict):
        named = f"{key}: " if key else ""
        if not isinstance(value, dict):
            raise ValueError(f"{named}it holds {_shown(value)}, not an object")
        rest = schema.get(str)
        for name, inner in (schema if rest is None else dict.fromkeys(value, rest)).items():
            if name.removesuffix("?") in value:
                fit(value[name.removesuffix("?")], inner, f"{key}.{name.removesuffix('?')}".lstrip("."))
            elif not name.endswith("?"):
                raise ValueError(f"{named}it has no {name}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ValueError(f"{key} is {_shown(value)}, not a list")
        for i, item in enumerate(value):
            fit(item, schema[0], f"{key}[{i}]")
    elif isinstance(schema, range):
        if type(value) is not int or value not in schema:
            raise ValueError(
                f"{key} is {_shown(value)}, not a whole number from {schema[0]:,} to {schema[-1]:,}"
            )
    elif not any(_is(value, kind) for kind in typing.get_args(schema) or [schema]):
        kind = schema if isinstance(schema, types.UnionType) else schema.__name__
        raise ValueError(f"{key or 'it'} is {_shown(value)}, not of type {kind}")


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and -math.inf < value < math.inf
    return isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))


def _shown(value: Any) -> str:
    """A value in a message, on one line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}..."


# A checkpoint as a folder: every process's shards as safetensors, and the rest of it; no pickles.
#
# shard-*.safetensors   parts of tensors, as torch.distributed.checkpoint lays them out
# rest.pt               everything else, with a marker in the place of every sharded tensor
# model.json            the model's card
# index.json            the bytes of the other files: where one has another size, the checkpoint is damaged

REST, INDEX = "rest.pt", "index.json"
_NAME = "__sharded__"


def marker(name: str, x: Tensor) -> dict[str, Any]:
    """Return the placeholder in rest.pt for a sharded tensor x [...]: its name, whole shape and dtype."""
    return {_NAME: name, "shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}


def read_rest(folder: Path) -> dict[str, Any]:
    """Return a checkpoint with placeholders for its sharded tensors. Raises OSError for a file of the wrong size."""
    for name, size in read_json(folder / INDEX, {str: int}).items():
        if (folder / name).stat().st_size != size:
            raise OSError(f"{folder / name} does not have the {size} bytes that were written")
    return torch.load(folder / REST, map_location="cpu", weights_only=True)


def read_tensors(folder: Path, found: Any, empty: Callable[[list[int], torch.dtype], Tensor]) -> Any:
    """Return `found`, a part of what `read_rest` returned, with its placeholders replaced by tensors.

    empty: shape, dtype -> the tensor that is read into: a whole one, or a DTensor, of which only the own part is read.
    """
    places: dict[str, Tensor] = {}

    def place(mark: dict[str, Any]) -> Tensor:
        return places.setdefault(mark[_NAME], empty(mark["shape"], getattr(torch, mark["dtype"])))

    filled = replace(found, lambda x: isinstance(x, dict) and _NAME in x, place)
    if places:
        # Late: it takes a third of a second, and only sharded checkpoints need it.
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        with warnings.catch_warnings():  # that there is one process, which is as it should be
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(places, storage_reader=HuggingFaceStorageReader(str(folder)))
    return filled


def read_whole(folder: Path, key: str) -> Any:
    """One entry of a checkpoint with whole tensors on the CPU, in a process of its own."""
    return read_tensors(folder, read_rest(folder)[key], lambda shape, dtype: torch.zeros(shape, dtype=dtype))


def replace(x: Any, wanted: Callable[[Any], bool], new: Callable[..., Any], name: str | None = None) -> Any:
    """A copy of nested dicts and lists with new(x) for all that is `wanted`; new(name, x) where a name is given.

    name: the keys on the way to x, joined by dots.
    """
    if wanted(x):
        return new(x) if name is None else new(name, x)

    def inner(key: Any) -> str | None:
        return None if name is None else f"{name}.{key}".lstrip(".")

    if isinstance(x, dict):
        return type(x)((k, replace(v, wanted, new, inner(k))) for k, v in x.items())
    if isinstance(x, list | tuple):
        return type(x)(replace(v, wanted, new, inner(i)) for i, v in enumerate(x))
    return x

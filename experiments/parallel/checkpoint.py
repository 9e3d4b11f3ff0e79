"""Checkpoints of sharded runs, and checkpoints of any run read by any number of processes."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor, zeros

from experiments.parallel import group
from zoo.files import (
    INDEX,
    REST,
    marker,
    read_rest,
    read_tensors,
    replace,
    require_file,
    write_atomic,
    write_json,
)
from zoo.io import CARD

SOURCE = "read_from"
"""The key under which a checkpoint that is still without its sharded tensors names its folder."""


def has_shards(checkpoint: dict[str, Any]) -> bool:
    """Return whether some of the model's tensors are held in parts."""
    return any(isinstance(x, DTensor) for x in checkpoint["state_dict"].values())


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a sharded checkpoint into the folder `path`, whole or not at all. All processes have to call it."""
    # Late: it takes a third of a second, and only sharded runs need it.
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    shards: dict[str, Tensor] = {}

    def take(name: str, x: DTensor) -> dict[str, Any]:
        shards[name] = x.detach()
        return marker(name, x)

    rest = replace(checkpoint, lambda x: isinstance(x, DTensor), take, "")
    partial = path.with_name(f".{path.name}.partial")
    if group.is_main():
        remove(partial)
        partial.mkdir()
    group.barrier()
    dcp.save(shards, storage_writer=HuggingFaceStorageWriter(str(partial), save_distributed=True))
    if group.is_main():
        content = io.BytesIO()
        torch.save(rest, content)
        write_atomic(partial / REST, content.getbuffer())
        write_json(partial / CARD, checkpoint["card"])
        write_json(partial / INDEX, {x.name: x.stat().st_size for x in sorted(partial.iterdir())})
        remove(path)
        os.replace(partial, path)
    group.barrier()


def remove(path: Path) -> None:
    """Remove a checkpoint, a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """A checkpoint; one that is a folder without its sharded tensors, which `fill` reads.

    mmap: check the file's checksums, and leave tensors in it until they are used. Raises many kinds of errors where it
    is damaged.
    """
    if path.is_dir():
        return {**read_rest(path), SOURCE: str(path)}
    require_file(path)
    if mmap and (damaged := zipfile.ZipFile(path).testzip()):  # by checksums, which torch leaves out
        raise OSError(f"{path}: {damaged} is damaged")
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def fill(checkpoint: dict[str, Any], model: nn.Module) -> None:
    """Give the model's and the optimiser's tensors in a checkpoint the form that this process holds: whole, or shards.

    All processes have to call it.
    """
    like = next((p for p in model.parameters() if isinstance(p, DTensor)), None)
    folder = checkpoint.pop(SOURCE, None)
    for key in ("state_dict", "optimizer_states"):
        if folder is not None:
            checkpoint[key] = read_tensors(Path(folder), checkpoint[key], lambda *x: _empty(like, *x))
    if like is not None and folder is None:
        sharded = {f"model.{name}" for name, p in model.named_parameters() if isinstance(p, DTensor)}
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {k: _part(x, like) if k in sharded else x for k, x in weights.items()}
        # Scalars stay whole: steps, and the state of scalar parameters.
        states = checkpoint["optimizer_states"]
        checkpoint["optimizer_states"] = replace(states, _has_rows, lambda x: _part(x, like))


def count_for_all(checkpoint: dict[str, Any], replicas: int) -> None:
    """Let the loop's progress count the micro-batches of all replicas, as one process would."""
    _count(checkpoint, lambda begun: begun * replicas)


def count_for_one(checkpoint: dict[str, Any], replicas: int) -> None:
    """Let the loop's progress count the micro-batches of one replica of several."""
    _count(checkpoint, lambda begun: begun // replicas)


def _count(checkpoint: dict[str, Any], change: Any) -> None:
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for part in ("total", "current"):
        # The last one is begun and not completed yet: that is one micro-batch, however many processes there are.
        begun = progress[part]["ready"]
        progress[part] = {key: change(begun) - (begun - done) for key, done in progress[part].items()}


def _empty(like: DTensor | None, shape: list[int], dtype: torch.dtype) -> Tensor:
    if like is None:
        return torch.zeros(shape, dtype=dtype)
    return zeros(*shape, dtype=dtype, device_mesh=like.device_mesh, placements=like.placements)


def _has_rows(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0


def _part(x: Tensor, like: DTensor) -> DTensor:
    """The shard of a whole tensor that every process has, cut without communication."""
    return distribute_tensor(x, like.device_mesh, like.placements, src_data_rank=None)

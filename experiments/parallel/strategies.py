"""Data parallelism, trainer.strategy: a whole model in every process (`ddp`), or a part of every parameter (`fsdp`).

DDP sums gradients in a fixed order. FSDP2 is ZeRO-3, or ZeRO-2 without resharding: a layer's parameters are gathered
when it is entered, forward and backward, and its gradients are summed and scattered as soon as its backward is past.
Embedding, norm and head are one unit (the head may be the embedding), which stays gathered from the first layer to the
last.
"""

# Without `from __future__ import annotations`: PyTorch compares the annotations of a communication hook as classes.

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import zoo.io
from experiments.parallel import group
from zoo.model import LanguageModel

# ddp: the whole model in every process.


def replicate(model: nn.Module, compute: nn.Module, device: torch.device) -> DistributedDataParallel:
    """The model (`compute`: itself, or compiled), with gradients summed over the processes in its backward.

    Losses are parts of the step's beforehand. Parameters that a step does not use have no gradient afterwards, as
    in one process. Buffers are left alone: those that depend on the batches are summed by their own modules.
    """
    model.to(device)
    replicas = DistributedDataParallel(
        compute,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=True,
        broadcast_buffers=False,
    )
    replicas.register_comm_hook(None, sum_bucket)
    return replicas


def sums_gradients(compute: nn.Module, last: bool) -> None:
    """Let the next backward of replicas sum gradients over the processes only where it is the `last` of its step.

    Others accumulate in each process. What is no replica is left as it is: FSDP2 sums in every backward, lest whole
    gradients be held.
    """
    if isinstance(compute, DistributedDataParallel):
        compute.require_backward_grad_sync = last


def sum_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's communication hook: the sum of a bucket over all processes.

    On CPUs in the order of the processes, as one process accumulates micro-batches: float addition is not associative,
    and only this order gives equal bits for more than two. It moves as many bytes as a ring's all-reduce. On GPUs
    NCCL's all-reduce, which overlaps with the backward; for two processes it gives equal bits too.
    """
    x = bucket.buffer()
    if x.is_cuda:
        done = dist.all_reduce(x, async_op=True).get_future()
        return done.then(lambda future: future.value()[0])
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(ordered_sum(x))
    return future


def ordered_sum(x: Tensor) -> Tensor:
    """Σ_r x_r over the processes r = 0, 1, ..., added in this order; x [n], equal bits on all of them.

    Every process adds one part of all the vectors, and the parts are gathered.
    """
    processes = dist.get_world_size()
    padded = F.pad(x, (0, -len(x) % processes))
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded)
    total, *others = received.view(processes, -1).unbind()
    for part in others:
        total += part
    dist.all_gather_into_tensor(padded, total)
    return padded[: len(x)]


# fsdp: a part of every parameter in every process.


def mesh(device: torch.device) -> DeviceMesh:
    """Return the device mesh that FSDP shards over: all processes in one dimension."""
    return init_device_mesh(device.type, (group.size(),))


def shard(model: LanguageModel, device: torch.device, *, reshard: bool) -> LanguageModel:
    """The model itself, its parameters replaced by this process's shards on `device`.

    reshard: whether a layer's parameters are freed between its forward and its backward (ZeRO-3).
    FSDP2 cannot shard scalars: they stay whole, and `sum_whole_gradients` sums their gradients.
    Gradients are summed, not averaged: gloo's reduce-scatter would sum where it is told to average.
    """
    # Autocast would keep the bf16 copies of all gathered weights until the forward is done.
    torch.set_autocast_cache_enabled(False)
    options = {"mesh": mesh(device), "ignored_params": {p for p in model.parameters() if p.dim() == 0}}
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **options)
    fully_shard(model, **options)
    for unit in (model, *model.layers):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    return model.to(device)


def is_sharded(model: nn.Module) -> bool:
    """Return whether some parameter of the model is held in parts."""
    return any(isinstance(p, DTensor) for p in model.parameters())


def sum_whole_gradients(model: nn.Module) -> None:
    """In a sharded model, sum the gradients of the parameters that are not sharded over the processes."""
    if not is_sharded(model):
        return
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor) and parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def clip(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Clip the norm of these parameters' gradients to `limit`, sharded ones' too; returns the norm before, of all.

    With the bits of one process: a norm added up in another order would differ in its last bit, and so would every
    update; models with discrete choices (routing) or solvers are far apart twenty steps later.
    """
    sharded = [p for p in parameters if isinstance(p, DTensor)]
    if not sharded:
        return nn.utils.clip_grad_norm_(parameters, limit)
    norm = torch.linalg.vector_norm(_norms([p.grad for p in parameters]))
    others = [p for p in parameters if not isinstance(p, DTensor)]
    for part in (sharded, others):  # DTensors and others do not go into one call
        nn.utils.clip_grads_with_norm_(part, limit, norm)
    return norm


def _norms(gradients: list[Tensor]) -> Tensor:
    """The norm of each gradient, [n]: the processes take turns, and the one whose turn it is gathers that gradient.

    So every shard is sent once, which is little beside the gathering of parameters.
    """
    norms = torch.zeros(len(gradients), device=gradients[0].device)
    for i, gradient in enumerate(gradients):
        owner = i % group.size()
        full = _gathered_by(owner, gradient) if isinstance(gradient, DTensor) else gradient
        if group.rank() == owner:
            norms[i] = torch.linalg.vector_norm(full)
    dist.all_reduce(norms)  # one number and zeros: exact
    return norms


def _gathered_by(owner: int, x: DTensor) -> Tensor | None:
    """The whole tensor in process `owner`, None in the others."""
    rows, local = -(-len(x) // group.size()), x.to_local()
    padded = local.new_zeros(rows, *x.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in range(group.size())] if group.rank() == owner else None
    dist.gather(padded, parts, dst=owner)
    return None if parts is None else torch.cat(parts)[: len(x)]


def whole(x: Tensor) -> Tensor:
    """The whole tensor, where x is a shard; else x. All processes have to call it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def export(model: LanguageModel, folder: Path, **extra: Any) -> None:
    """`zoo.io.export` by the main process, of a whole or sharded model. All processes of a run have to call it."""
    weights = whole_state(model)
    if group.is_main():
        zoo.io.export(model, folder, weights=weights, **extra)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state with whole tensors on the CPU in the main process; nothing in the others, where it is sharded.

    One tensor at a time is gathered, so that no GPU has to hold the model. All processes have to call it.
    """
    if not is_sharded(model):
        return dict(model.state_dict())
    return dict(_gathered(model.state_dict()))


def _gathered(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, x in state.items():
        gathered = whole(x.detach())
        if group.is_main():
            yield name, gathered.cpu()

"""Data parallelism with a whole model in every process (DDP), whose sum of gradients has a fixed order."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


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

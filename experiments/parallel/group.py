"""The devices and processes that train one run, and the micro-batches of each process.

Outside of torchrun there is one process, and nothing here communicates.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from zoo.context import Context
from zoo.errors import UserError

if TYPE_CHECKING:
    from experiments.configuration.schema import Config

PATIENCE = timedelta(days=1)
"""How long a process waits for others, which may wait for the run's lock or probe; torchrun notices those that end."""

_sequence: Any = None
"""The process group of those that hold this process's sequences with it; None where it holds them alone."""


@contextlib.contextmanager
def joined(device: torch.device, context: int = 1) -> Iterator[None]:
    """While inside, this process is one of those that torchrun started.

    device: the kind they train on; context: how many of them, with numbers one after another, hold a sequence together.
    """
    global _sequence
    gpu = device.type == "cuda"
    local = own_device(device)
    if gpu:
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE, device_id=local if gpu else None)
    if context > 1:
        first = rank() - rank() % context
        for begin in range(0, size(), context):  # every process has to take part in making every group
            made = dist.new_group(range(begin, begin + context), timeout=PATIENCE)
            _sequence = made if begin == first else _sequence
    yield
    _sequence = None
    dist.destroy_process_group()  # not after an error: it would wait for others that wait for this one


def is_joined() -> bool:
    """Return whether this process trains together with others (`joined`)."""
    return dist.is_available() and dist.is_initialized()


def size() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_joined() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if is_joined() else 0


def is_main() -> bool:
    """Return whether this is the process that decides and writes files: number 0."""
    return rank() == 0


def sequence() -> Any:
    """The process group of those that hold a sequence together with this process; None where it holds it alone."""
    return _sequence


def context() -> int:
    """Return the number of processes that hold a sequence together."""
    return 1 if _sequence is None else dist.get_world_size(_sequence)


def replicas() -> int:
    """Return the number of processes, or of groups that hold a sequence together, with micro-batches of their own."""
    return size() // context()


def replica() -> int:
    """The number of this process, or of its group, among `replicas`, from 0."""
    return rank() // context()


def holds_main_s_sequence() -> bool:
    """Return whether this is the main process, or one of those that hold its sequences together with it."""
    return replica() == 0


def share(micro_batches: int) -> int:
    """Return the number of a step's micro-batches that this process computes, alone or with others."""
    return micro_batches // replicas()


def own_micro_batches(start: int) -> Iterator[int]:
    """The numbers of this process's micro-batches from `start` on, without end: start + r, start + r + N, ...

    r: the number of the process, of N. A step has a multiple of N micro-batches, so each of them has one owner.
    Processes that hold sequences together (trainer.context) are one here.
    """
    return itertools.count(start + replica(), replicas())


def pick_device(device: str) -> torch.device:
    """The device of a setting; auto: the GPU if there is one. Raises UserError where cuda is asked for and absent."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but PyTorch sees no CUDA device here; use device=cpu or device=auto")
    return torch.device(device)


def check_devices(device: str, devices: int) -> torch.device:
    """The device of a setting. Raises UserError where there are fewer GPUs here than processes that want one each."""
    picked = pick_device(device)
    if picked.type == "cuda" and devices > torch.cuda.device_count():
        raise UserError(
            f"trainer.devices={devices}, but PyTorch sees {torch.cuda.device_count()} CUDA device(s) here"
        )
    return picked


def check(config: Config) -> torch.device | None:
    """Refuse devices that are absent here, and processes among which steps or sequences cannot be shared.

    Returns the device that trains here; None where the sweep's engine trains on other machines, whose devices are not
    looked at. Raises UserError.
    """
    t = config.trainer
    here = check_devices(config.device, t.devices) if config.sweep.engine == "pool" else None
    if t.context > 1:
        _check_context(config)
    if t.processes > 1:
        _check_shares(config)
    return here


def _check_shares(config: Config) -> None:
    """Refuse micro-batches that processes cannot share, and what needs a whole model in each of them."""
    t = config.trainer
    replicas, together = t.processes // t.context, "" if t.context == 1 else f" in groups of {t.context}"
    if t.accumulate % replicas:
        raise UserError(
            f"trainer.accumulate={t.accumulate} micro-batches a step cannot be shared by {t.processes} devices"
            f"{together}; give a multiple, trainer.accumulate={replicas * -(-t.accumulate // replicas)}, and lower "
            "data.batch_size in proportion to keep the size of a step"
        )
    if t.strategy == "fsdp" and t.compile:
        raise UserError("trainer.strategy=fsdp does not go with trainer.compile=true; leave one of them out")
    if t.strategy == "fsdp" and t.probe_every is not None:
        raise UserError(
            "trainer.probe_every probes a whole model, and with trainer.strategy=fsdp no process has one; leave it "
            "out, keep weights with trainer.keep_steps, and probe the finished run (job=probe probe.at=STEP)"
        )


def _check_context(config: Config) -> None:
    """Refuse shards of sequences that cannot be cut, and what needs whole sequences."""
    t, length = config.trainer, config.data.seq_len
    n = t.context
    if t.processes % n:
        raise UserError(
            f"trainer.context={n} needs {n} devices per sequence, and there are {t.processes} (trainer.devices times "
            f"trainer.nodes); give a divisor of them, or trainer.devices={n}"
        )
    if length % n:
        raise UserError(
            f"trainer.context={n} cannot cut data.seq_len={length} into equal shards; give a length divisible by it, "
            f"data.seq_len={n * -(-length // n)}"
        )
    if t.compile:
        raise UserError(f"trainer.context={n} does not go with trainer.compile=true; leave one of them out")


def pick_precision(setting: str, device: torch.device) -> str:
    """The precision of a setting; auto: bf16 on GPUs, fp32 on CPUs (which emulate bf16, slowly)."""
    return setting if setting != "auto" else ("bf16" if device.type == "cuda" else "fp32")


def own_device(device: torch.device) -> torch.device:
    """The device of this process: of several GPUs the one with its number on this machine."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if device.type == "cuda" else device


def from_main(value: Any) -> Any:
    """The main process's value, on all processes; a plain value or small object. All have to call it."""
    return from_process(value, 0)


def from_process(value: Any, number: int) -> Any:
    """The value of process `number`, on all processes. All have to call it."""
    if size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=number)
    return box[0]


def from_all(value: Any) -> list[Any]:
    """The values of all processes, in their order. All have to call it."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value)
    return values


def gathered(x: Tensor) -> Tensor:
    """x [...] of all processes, in their order: [N, ...]. All have to call it, with equal shapes."""
    if size() == 1:
        return x[None]
    out = x.new_empty(size(), *x.shape)
    dist.all_gather_into_tensor(out.flatten(), x.contiguous().flatten())
    return out


def over_replicas(x: Tensor) -> Tensor:
    """Σ x [...] over the replicas. All have to call it, with equal shapes."""
    return gathered(x)[:: context()].sum(0)  # those of one sequence have the same


def losses_in_order(local: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The scalars of a step's micro-batches, by name, of all processes in the micro-batches' order.

    own: those of this process. All have to call it, with as many micro-batches and the same names.
    """
    if size() == 1:
        return local
    names = list(local[0])
    values = torch.stack([torch.stack([scalars[name].float() for name in names]) for scalars in local])
    first = gathered(values)[:: context()]  # those of one sequence have the same losses
    rows = first.transpose(0, 1).flatten(0, 1)  # [turns · replicas, names]
    return [dict(zip(names, row.unbind(), strict=True)) for row in rows.unbind()]


def barrier() -> None:
    """Wait for all processes."""
    from_main(None)


# Computing on tokens that lie on several processes, and having the numbers of all of them on each.

Read = Callable[[Tensor, Tensor, Context], Tensor]


@torch.no_grad()
def by_shards(read: Read, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor | None, shards: Any) -> Tensor:
    """`read(tokens, targets, ctx)`, numbers [B, T] from causal models, where every process computes its shard's.

    tokens, targets int64 [B, T] and cu_seqlens (as in `Context.of`): the whole batch, on every process of the group
    `shards`. Where it does not cut into equal shards, tokens are added at the end, as a sequence of their own where
    there are boundaries.
    """
    size, length = dist.get_world_size(shards), tokens.shape[1]
    more = -length % size
    if more and cu_seqlens is not None:
        cu_seqlens = torch.cat([cu_seqlens, cu_seqlens[-1:] + more])
    tokens, targets = (F.pad(x, (0, more)) for x in (tokens, targets))
    ctx = Context.of(tokens, cu_seqlens).cut(shards)
    part = read(ctx.shard.own(tokens), ctx.shard.own(targets), ctx).contiguous()
    parts = [torch.empty_like(part) for _ in range(size)]
    dist.all_gather(parts, part, group=shards)
    return torch.cat(parts, 1)[:, :length]

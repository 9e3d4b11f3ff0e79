"""The bytes that training needs on each device, counted without that memory; whether they and its FLOPs fit here."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from experiments.configuration.schema import Config, TrainerConfig
from experiments.costs.model_costs import LiveBytes, count_flops
from experiments.optimisation import make_optimizer
from experiments.parallel.group import pick_precision
from zoo import cost
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import set_step
from zoo.model import LanguageModel, on_fake_tensors
from zoo.options import remembered
from zoo.recompute import Recompute

FOOTNOTE = (
    "Parameters, their gradients and the optimiser's state are fp32. Activations are the peak of one micro-batch,\n"
    "forward and backward, by PyTorch's own operators; fused kernels need less. An allocator's fragmentation,\n"
    "workspaces and the process itself come on top."
)

BUCKET = 25 * 2**20
"""Bytes of a bucket of DDP."""

LATE_STEP = 10**6
"""An optimiser step past every warm-up."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device at the peak of a step, parameters and their gradients in fp32.

        parameters    what the device holds of them
        gradients     what it holds of them, and of DDP the buckets that they are summed in (on CPUs copied twice)
        optimizer     its state: of AdamW two moments
        gathered      of FSDP: the embedding, norm and head; of layers the one at work and the next (ZeRO-2: all), and
                      two layers in the flat buffers that parameters are gathered into and gradients are summed in
        activations   the most that a micro-batch's forward and backward pass holds at once, the logits included

    strategy, precision: what they were counted for.
    """

    strategy: str
    precision: str
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    def parts(self) -> dict[str, int]:
        """The bytes by name."""
        return {name: size for name, size in asdict(self).items() if isinstance(size, int)}

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.parts().values())


def device_memory(config: Config, device: torch.device) -> DeviceMemory:
    """The memory of a configuration on each of its trainer.devices · trainer.nodes devices, of this kind.

    Of those that hold a sequence together (trainer.context) the last, whose queries read the most keys.
    """
    t = config.trainer
    devices = t.devices * t.nodes
    precision = pick_precision(t.precision, device)
    with FakeTensorMode():
        model = _model(config)
        activations = _activations(model, config, half=precision == "bf16")
        total = _bytes(model)
        if devices == 1:
            state = _optimizer_state(model, config)
            return DeviceMemory("one process", precision, total, total, state, 0, activations)
        if t.strategy != "fsdp":
            copies = 0 if device.type == "cuda" else 2 * min(total, BUCKET)
            state = _optimizer_state(model, config)
            return DeviceMemory("ddp", precision, total, 2 * total + copies, state, 0, activations)
        layers = [_bytes(layer) for layer in model.layers]
        two = sum(sorted(layers)[-2:])
        gathered = total - sum(layers) + (two if t.reshard else sum(layers)) + two
        sharded = sum(_shard(p, devices) for p in model.parameters())
        kind = f"fsdp (ZeRO-{3 if t.reshard else 2})"
        return DeviceMemory(kind, precision, sharded, sharded, 2 * sharded, gathered, activations)


def _model(config: Config) -> LanguageModel:
    """The model as it is for most of its training."""
    seq_len = config.data.seq_len
    model = on_fake_tensors(config.model, vocab_size=config.nominal_vocabulary, seq_len=seq_len).train()
    set_step(model, LATE_STEP)
    model.recompute = Recompute(config.trainer.recompute, config.trainer.recompute_block)
    return model


def _activations(model: LanguageModel, config: Config, *, half: bool) -> int:
    """The peak of one micro-batch, without the gradients that stay."""
    rows, length = config.data.batch_size, config.data.seq_len
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_drop_gradient)
    with _last_of(config.trainer.context) as shards, LiveBytes() as bytes_:
        tokens = torch.zeros(rows, length, dtype=torch.int64)
        ctx = Context.of(tokens, noise_keys=torch.arange(rows))
        if shards is not None:
            ctx = ctx.cut(shards)
            tokens = ctx.shard.own(tokens)
        cached = config.trainer.strategy != "fsdp"  # as `parallel.strategies.shard` has it
        with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=cached):
            (nats, *_), aux = model(tokens, ctx, tokens)
            total = ctx.target_mean(nats, tokens) + model.aux_loss(aux)
        total.backward()
    return bytes_.peak


@contextlib.contextmanager
def _last_of(ranks: int) -> Iterator[Any]:
    """While inside, this process is the last of so many, and exchanges nothing; their group, None for one."""
    if ranks == 1:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=ranks - 1, world_size=ranks)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def _optimizer_state(model: LanguageModel, config: Config) -> int:
    """What the optimiser keeps, without the counts of its steps."""
    optimizer = make_optimizer(model, config.optim)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return sum(x.nbytes for kept in optimizer.state.values() for x in kept.values() if x.dim())


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _shard(parameter: Tensor, devices: int) -> int:
    """Bytes of a device's rows of a parameter; a scalar is whole on each."""
    rows = parameter.shape[0] if parameter.dim() else 1
    return math.ceil(rows / devices) * (parameter.numel() // rows) * parameter.element_size()


# Whether a model fits.

PATIENCE = 1e14
"""FLOPs of a micro-batch for each thread of a CPU, about half an hour of it: without a GPU more are refused."""

NEAR = 30
"""How many times the bytes that layers read a micro-batch may need: then they are counted, which takes a second."""


def memory_bytes(device: torch.device) -> int:
    """The memory of a GPU, or of this machine, of which a container may have a part."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    there = psutil.virtual_memory().total
    try:
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max": no limit
    except (OSError, ValueError):
        return there


@remembered
def _counted_once(config: Config, device: torch.device) -> int:
    return device_memory(config, device).activations


def _memory_of(config: Config, model: ModelConfig) -> Config:
    """What decides the memory of a micro-batch, so that cells that differ in other keys are counted once."""
    keys = ("precision", "recompute", "recompute_block", "context", "strategy", "devices")
    trainer = TrainerConfig(**{key: getattr(config.trainer, key) for key in keys})
    return Config(model=model, data=config.data, start=config.start, device=config.device, trainer=trainer)


def check_fits(config: Config, model: LanguageModel, device: torch.device, tokens: int | None = None) -> None:
    """Refuse a model that this machine cannot hold in training on the device, or a CPU not get through.

    model: without storage, the configuration's or another; tokens: of a micro-batch (None: the configuration's).
    Counted are the least bytes: of weights, gradients and AdamW's moments in fp32, and of what every layer reads for
    its backward pass; on a CPU, where these come near to its memory, half of what PyTorch's own operators keep, for
    fused ones need less. Raises UserError.
    """
    t, length, whole, there = config.trainer, config.data.seq_len, tokens is None, memory_bytes(device)
    gpu, fsdp = device.type == "cuda", t.strategy == "fsdp"
    tokens = config.data.batch_size * length // t.context if tokens is None else tokens
    layers = len(model.layers) if t.recompute == "none" else 1
    width = cost.stream_bytes(model) // (2 if pick_precision(t.precision, device) == "bf16" else 1)
    weights = 16 * cost.parameters(model) // (t.processes if fsdp else 1)
    kept = tokens * width * layers

    def refuse_more(kept: int) -> None:
        needed = (weights + kept) * (1 if gpu else t.devices)
        if needed > there:
            raise UserError(
                f"a model of {cost.parameters(model):,} parameters"
                f"{f' and micro-batches of {tokens:,} tokens' * (tokens > 0)} need at least {needed:,} bytes in "
                f"training, and {'the GPU' if gpu else 'this machine'} has {there:,}; lower "
                "model.d_model, model.depth, data.batch_size or data.seq_len"
            )

    refuse_more(kept)
    if gpu:
        return
    about = tokens * (6 * cost.parameters(model) + 12 * len(model.layers) * length * model.config.d_model)
    if about >= PATIENCE * t.threads:
        flops = tokens * count_flops(model, length, backward=True).per_token
        if flops > PATIENCE * t.threads:
            raise UserError(
                f"a micro-batch of {tokens:,} tokens takes {flops:.1e} FLOPs, more than a CPU does in half an hour "
                f"({PATIENCE:.0e} with each of trainer.threads={t.threads}); lower data.seq_len or data.batch_size, or "
                "use a GPU"
            )
    if whole and NEAR * kept > there:
        refuse_more(_counted_once(_memory_of(config, model.config), device) // 2)

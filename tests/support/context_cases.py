"""Blocks in one piece and in shards, in the ranks of a group: by how much the two differ."""

import functools
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from support.context_traffic import received
from support.contract_cases import WIDTH, Case, boundaries, build, cases, keys, tokens
from zoo import Context, Mixer, context_parallel

TIME = 72
"""Tokens of a batch: 2, 3 and 4 ranks divide them, and a shard of 4 ranks has more than a convolution's 4."""

# In shards of 18: a document in one shard, one over three shards, whole ones inside a shard, a border on a border.
DOCUMENTS = (7, 40, 3, 4, 18)
Errors = dict[str, float]


def layouts(seeds: Iterable[int] = ()) -> dict[str, Tensor | None]:
    """cu_seqlens by name: None for two rows, the documents above, and documents with random borders."""
    found = {"rows": None, "documents": boundaries(*DOCUMENTS)}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        cuts = torch.randperm(TIME - 1, generator=generator)[: 3 + seed % 7].sort().values + 1
        found[f"random{seed}"] = torch.cat([torch.zeros(1), cuts, torch.tensor([TIME])]).to(torch.int32)
    return found


def context(cu_seqlens: Tensor | None) -> Context:
    """The context of the whole batch, with noise."""
    if cu_seqlens is None:
        return Context.of(tokens(2, TIME), noise_keys=keys(2))
    return Context.of(tokens(1, TIME), cu_seqlens, keys(len(cu_seqlens) - 1))


def errors_by_size(names: list[str], seeds: tuple[int, ...], sizes: tuple[int, ...]) -> dict[int, dict]:
    """For each number of ranks, which the group is cut into, the errors of cases in training and evaluation."""
    return {size: every_error(names, seeds, (True, False), _group(size)) for size in sizes}


def _group(size: int) -> Any:
    return None if size == dist.get_world_size() else dist.new_subgroups(size)[0]


def every_error(
    names: list[str], seeds: tuple[int, ...], trainings: tuple[bool, ...], group: Any = None
) -> dict[str, Errors]:
    """The errors of cases, given by name, over all layouts; to be run on ranks."""
    out = {}
    for case in cases():
        if str(case) in names:
            for layout, cu_seqlens in layouts(seeds).items():
                for training in trainings:
                    where = f"{case} {layout} {'train' if training else 'eval'}"
                    out[where] = case_errors(case, context(cu_seqlens), training, group)
    return out


def case_errors(case: Case, ctx: Context, training: bool, group: Any = None) -> Errors:
    """Errors of a mixer alone, of any other block in a model."""
    model = build(case.config()).train(training)
    if case.kind == "mixer":
        mixer = model.layers[0].mixer
        return mixer_errors(mixer, ctx, group, knows=mixer.context_parallel)
    return module_errors(model, model, None, ctx, group)


def mixer_errors(mixer: Mixer, ctx: Context, group: Any = None, *, knows: bool = True) -> Errors:
    """Errors of outputs, losses, gradients of input and parameters; knows: of shards, else its input is gathered."""
    shape = (*ctx.positions.shape, WIDTH)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    run = mixer if knows else functools.partial(context_parallel.whole, mixer)
    return module_errors(mixer, run, x, ctx, group)


def module_errors(
    module: nn.Module,
    run: Callable,
    x: Tensor | None,
    ctx: Context,
    group: Any = None,
    whole: Callable | None = None,
) -> Errors:
    """The same of any module; run: what shards call; whole: what the one piece calls (None: the module).

    x None: token ids, which have no gradient.
    """
    inputs = tokens(*ctx.positions.shape) if x is None else x
    wanted = outcome(module, whole or module, inputs, ctx)
    own = ctx.cut(group)
    got = outcome(module, run, own.shard.own(inputs), own)
    errors = {}
    for name, value in wanted.items():
        mine = got[name]
        if name in ("output", "input"):
            value = own.shard.own(value)
        if name.startswith(("parameter", "buffer")):
            dist.all_reduce(mine, group=group)
        errors[name] = float((mine - value).abs().max() / value.abs().max().clamp_min(1.0))
    return errors


def outcome(module: nn.Module, run: Callable, x: Tensor, ctx: Context) -> dict[str, Tensor]:
    """Output, losses, gradients and counts of one forward and backward, by name."""
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_(x.is_floating_point())
    y, aux = run(x, ctx)
    weights = torch.randn((*ctx.positions.shape, y.shape[-1]), dtype=y.dtype, generator=_generator())
    if ctx.shard is not None:
        whole = (*ctx.shard.whole.positions.shape, y.shape[-1])
        weights = ctx.shard.own(torch.randn(whole, dtype=y.dtype, generator=_generator()))
    loss = (y * weights).sum()
    if ctx.shard is not None:
        loss = context_parallel.total(loss, ctx.shard)
    (loss + sum(aux.values())).backward()
    found = {"output": y.detach(), **{f"loss {name}": value.detach() for name, value in aux.items()}}
    if x.requires_grad:
        found["input"] = x.grad
    for name, p in module.named_parameters():
        found[f"parameter {name}"] = torch.zeros_like(p) if p.grad is None else p.grad.clone()
    for name, buffer in module.named_buffers():
        if name.endswith("counts"):
            found[f"buffer {name}"] = buffer.clone()
            buffer.zero_()
    return found


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(6)


def smoke() -> dict[str, dict]:
    """Of every mixer in training, in rows and documents: errors; of one that knows nothing of shards; of mistakes; and
    the numbers received in rows."""
    mixers = [case for case in cases() if case.kind == "mixer" and not case.variant]
    documents = context(layouts()["documents"])
    timelines = build(Case("mixer", "hypergraph").config()).layers[0].mixer
    return {
        "errors": every_error([str(case) for case in mixers], (), (True,)),
        "fallback": {"fallback": mixer_errors(timelines, documents, knows=False)},
        "mistakes": {place: mistake_errors(place) for place in MISTAKES},
        "gradients": added_gradients(documents),
        "losses": losses_of_uneven_shards(),
        "received": {case.name: received(case.name, context(None)) for case in mixers},
    }


def added_gradients(ctx: Context) -> list[float | None]:
    """Added over ranks: a gradient that every rank has, one that rank 0 has, and one that none has."""
    parameters = [nn.Parameter(torch.zeros(())) for _ in range(3)]
    parameters[0].grad = torch.tensor(2.0)
    parameters[1].grad = torch.tensor(3.0) if dist.get_rank() == 0 else None
    context_parallel.add_gradients(parameters, ctx.cut().shard)
    return [None if p.grad is None else p.grad.item() for p in parameters]


def losses_of_uneven_shards() -> dict[str, float]:
    """By how much losses in shards differ from the whole batch's, whose second half has one target.

    In shards of all ranks; and in groups of one rank each, every one with a batch of its own.
    """
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    alone = [dist.new_group([one]) for one in ranks][rank]
    return {"all": _loss_error(7, context(None).cut()), "alone": _loss_error(rank, context(None).cut(alone))}


def _loss_error(seed: int, ctx: Context) -> float:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, TIME, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (2, TIME), generator=generator)
    targets[:, TIME // 2 :], targets[0, -1] = -100, 2
    own = ctx.shard.own(targets)
    nats = F.cross_entropy(ctx.shard.own(logits).flatten(0, 1), own.flatten(), reduction="sum")
    return (
        (ctx.target_mean(nats, own) - F.cross_entropy(logits.flatten(0, 1), targets.flatten())).abs().item()
    )


_gather, _to_time = context_parallel.gather, context_parallel.to_time

# What goes wrong: the name of a function in zoo.context_parallel, a mixer that needs it, and another in its stead.
MISTAKES: dict[str, tuple[str, Callable]] = {
    "gather": (
        "attention",
        lambda x, shard: _gather(x.detach(), shard) + 0 * x.sum(),
    ),
    "halo": ("gated_conv", lambda last, shard: 0 * last),
    "fold": ("kda", lambda transition, increment, shard: 0 * increment),
    "to_time": ("path_fox", lambda x, shard: _to_time(x.flip(2), shard)),
    "total": ("gsa", lambda x, shard: x * shard.size),
}


def mistake_errors(name: str) -> Errors:
    """The errors of documents with a mistake in this function."""
    mixer, instead = MISTAKES[name]
    with mock.patch.object(context_parallel, name, instead):
        return case_errors(Case("mixer", mixer), context(layouts()["documents"]), True)

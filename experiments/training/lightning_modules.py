"""The Lightning modules, next-token prediction and the answers of a task, and how they are optimised.

With the search for the origin of a NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from experiments.configuration.schema import Config, StartConfig
from experiments.data import Batches
from experiments.data.task_set import TaskBatches
from experiments.data.tasks_base import IGNORE
from experiments.optimisation import lr_factor, make_optimizer
from experiments.parallel import checkpoint as parallel_checkpoint
from experiments.parallel import group
from experiments.parallel.strategies import clip, sum_whole_gradients, sums_gradients, whole
from experiments.scoring.tasks import accuracies
from experiments.training import pl
from zoo.context import Context
from zoo.interfaces import grouped_parameters, set_step
from zoo.io import card
from zoo.model import LanguageModel
from zoo.modules import Gate

# NaN and infinite losses and gradients: the step, and the module where they began.

UNKNOWN = "loss"
"""What `first_bad_module` calls the place where no module's output is to blame."""


class NonFinite(RuntimeError):
    """Training met NaN or infinity. `step` and `module` say where; the last good checkpoint is untouched."""

    def __init__(self, what: str, step: int, module: str) -> None:
        super().__init__(
            f"{what} at step {step}, first in module '{module}'; the last good checkpoint is kept. "
            "Lower optim.lr, raise optim.warmup_steps, or start again with another seed"
        )
        self.step, self.module = step, module


def first_bad_module(model: nn.Module, forward: Callable[[], Any]) -> str:
    """The first module whose output is not finite though its input was, by running `forward` again with hooks.

    A module whose own weights are not finite is named at once.
    """
    for name, parameter in model.named_parameters():
        if not whole(torch.isfinite(parameter).all()):
            return f"{name} (its weights are not finite)"
    bad: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not bad and _finite(inputs) and not _finite(output):
                bad.append(name)

        return hook

    handles = [m.register_forward_hook(watch(n or "model")) for n, m in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return bad[0] if bad else UNKNOWN


def first_bad_gradient(model: nn.Module) -> str:
    """The last parameter in module order with a gradient that is not finite: backward reached it first."""
    gradients = ((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
    bad = [name for name, grad in gradients if not whole(torch.isfinite(grad).all())]
    return f"{bad[-1]} (its gradient)" if bad else "gradient norm"


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_finite(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(v) for v in value)
    return True


# Modules and optimisation.

Batch = dict[str, Tensor]
STEP = "step"
"""The key under which a micro-batch tells the `counts` of its process's part of the step."""


class LanguageModelling(pl.LightningModule):
    """Cross-entropy of the next token plus weighted auxiliary losses.

    data_card: what the model's card says of what it is trained on (its tokenizer, its task).
    compute: what losses are computed with, the model itself or a wrapping of it (None: `compiled`).
    A step's losses are means over all its answers or sequences, of whatever micro-batch and process, so that they and
    their gradients do not depend on how it is cut. `last_step` holds those of the last optimiser step (of one that goes
    on, as far as this process is) and its gradient norm; `micro_batches` what each micro-batch added to them, in their
    order, those of other processes too.
    """

    measures: tuple[str, ...] = ()
    """What metric rows of training show beside the losses (`tasks.accuracies`), as parts like them."""

    def __init__(
        self,
        model: LanguageModel,
        config: Config,
        batches: Batches | TaskBatches,
        data_card: dict[str, Any],
        compute: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.batches = batches
        self.data_card = data_card
        # Not a submodule: the weights would be in every checkpoint twice.
        object.__setattr__(self, "compute", compiled(model, config) if compute is None else compute)
        self.last_step: dict[str, Tensor] = {}
        self.micro_batches: list[dict[str, Tensor]] = []
        self._own: list[tuple[Batch, dict[str, Tensor]]] = []  # micro-batches since the last optimiser step
        self._counts: Tensor | None = None  # of the step: `counts`, over all processes

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """What a micro-batch adds to its step's loss [], times the number that Lightning then divides by.

        batch: with the `counts` of this process's part of the step under STEP. Raises NonFinite.
        """
        share = group.share(self.config.trainer.accumulate)
        first, last = index % share == 0, (index + 1) % share == 0
        if group.size() > 1:
            sums_gradients(self.compute, last)
        if first:
            self._counts = group.over_replicas(batch[STEP])
        loss, aux, measured = self.losses(batch, self._counts)
        total = loss + self.model.aux_loss(aux)
        # Others are waiting for this process's gradients: several processes find out together, after the backward.
        if group.size() == 1 and not torch.isfinite(total):
            raise NonFinite("the loss is not finite", self.global_step, self._bad_module(batch))
        part = {"loss": loss.detach(), "aux_loss": (total - loss).detach(), **measured}
        part.update({f"aux:{name}": value.detach() for name, value in aux.items()})
        self._own.append((batch, part))
        self.last_step = part if first else {name: self.last_step[name] + x for name, x in part.items()}
        # In fp64 the product and Lightning's quotient cancel, and the backward starts with 1 in every micro-batch.
        return total if share == 1 else total.double() * share

    def losses(
        self, batch: Batch, step: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Mean cross-entropy [] in nats a token (of a task: an answer), auxiliary losses [], and accuracies.

        step: the `counts` of the step that the batch belongs to; then its parts of the step's means, which add up to
        them. None: the batch's own means.
        """
        part, ctx = own_part(batch)
        (nats, _, right), aux = self.compute(part["tokens"], ctx, part["targets"], right=bool(self.measures))
        answers = None
        if step is not None:
            answers, sequences = step.unbind()
            share = ctx.n_sequences / sequences.double()  # auxiliary losses are means over sequences
            aux = {name: value * share.to(value.dtype) for name, value in aux.items()}
        loss = ctx.target_mean(nats, part["targets"], IGNORE, answers)
        return loss, aux, {} if right is None else accuracies(right, part["targets"], step)

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser, and the learning-rate schedule that is advanced every step."""
        optimizer = make_optimizer(self.model, self.config.optim)
        steps = self.config.trainer.max_steps
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, self.config.optim, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Set the model's schedules to the step that training continues from."""
        set_step(self.model, self.global_step, self.config.trainer.max_steps)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Gather the micro-batches' losses, clip the gradients and advance the model's schedules. Raises NonFinite."""
        self._agree_on_losses()
        sum_whole_gradients(self.model)
        start, last = self.config.start, self.config.trainer.max_steps
        for parameter in resting(self.model, start, self.global_step / last):
            parameter.grad = None  # then the optimiser leaves weight and moments alone
        norm = clip_gradients(optimizer, self.config.optim.clip)
        if not torch.isfinite(norm):
            raise NonFinite("a gradient is not finite", self.global_step, first_bad_gradient(self.model))
        self.last_step = {**self.last_step, "grad_norm": norm}
        set_step(self.model, self.global_step + 1, self.config.trainer.max_steps)

    def _agree_on_losses(self) -> None:
        """Gather the losses of the step's micro-batches. Raises NonFinite, the same in all processes."""
        self.micro_batches = group.losses_in_order([losses for _, losses in self._own])
        local, self._own = self._own, []
        if group.size() == 1:
            return
        self.last_step = {name: sum(part[name] for part in self.micro_batches) for name in self.last_step}
        totals = torch.stack([losses["loss"] + losses["aux_loss"] for losses in self.micro_batches])
        bad = torch.isfinite(totals).logical_not().nonzero().flatten().tolist()
        if bad:
            turn, replica = divmod(bad[0], group.replicas())
            names = group.from_all(self._bad_module(local[turn][0]))[replica * group.context() :]
            # Of those that hold the sequence together, one whose own tokens tell.
            module = next((name for name in names[: group.context()] if name != UNKNOWN), UNKNOWN)
            raise NonFinite("the loss is not finite", self.global_step, module)

    def _bad_module(self, batch: Batch) -> str:
        part, ctx = own_part(batch)
        return first_bad_module(self.model, lambda: self.model(part["tokens"], ctx))

    def train_dataloader(self) -> DataLoader:
        """Batches from the step that the trainer is at, so that a resumed run gets those of an uninterrupted one."""
        start = self.global_step * self.config.trainer.accumulate
        stream = _Stream(self.batches, start, group.share(self.config.trainer.accumulate))
        return DataLoader(stream, batch_size=None, pin_memory=self.on_gpu)

    @property
    def on_gpu(self) -> bool:
        """Return whether training runs on a GPU."""
        return self.trainer.strategy.root_device.type == "cuda"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the model's card, with what it was trained on, into the checkpoint."""
        checkpoint["card"] = card(self.model, **self.data_card)
        parallel_checkpoint.count_for_all(checkpoint, group.replicas())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give the checkpoint of any number of processes the form that this one goes on from."""
        parallel_checkpoint.fill(checkpoint, self.model)
        parallel_checkpoint.count_for_one(checkpoint, group.replicas())


class SyntheticTask(LanguageModelling):
    """The answers of a synthetic task: every other target is IGNORE, and has no part in the loss."""

    measures = ("accuracy", "sequence_accuracy")


def compiled(model: LanguageModel, config: Config) -> nn.Module:
    """The model, compiled where trainer.compile asks for it."""
    return torch.compile(model) if config.trainer.compile else model


def context(batch: Batch) -> Context:
    """The context of a training batch, with its sequence boundaries and noise keys."""
    return Context.of(batch["tokens"], batch.get("cu_seqlens"), batch.get("noise_keys"))


def own_part(batch: Batch) -> tuple[Batch, Context]:
    """A batch and its context; where several processes hold a sequence together, this one's shard of both."""
    ctx = context(batch)
    if group.context() == 1:
        return batch, ctx
    ctx = ctx.cut(group.sequence())
    return {name: ctx.shard.own(batch[name]) for name in ("tokens", "targets")}, ctx


def counts(batch: Batch) -> Tensor:
    """Return the answers (targets asked for) and the sequences of a batch, int64 [2]: what losses are means over."""
    bounds = batch.get("cu_seqlens")
    sequences = len(batch["tokens"]) if bounds is None else len(bounds) - 1
    return torch.stack([(batch["targets"] != IGNORE).sum(), torch.tensor(sequences)])


class _Stream(IterableDataset):
    """This process's micro-batches from `start` on, without end; the trainer stops at its step limit.

    The `share` of a step are drawn together, before the first is trained on: each has the sum of their `counts`.
    """

    def __init__(self, batches: Batches | TaskBatches, start: int, share: int) -> None:
        self.batches, self.start, self.share = batches, start, share

    def __iter__(self) -> Iterator[Batch]:
        numbers = group.own_micro_batches(self.start)
        while True:
            step = [self.batches.batch(index) for index in itertools.islice(numbers, self.share)]
            together = torch.stack([counts(batch) for batch in step]).sum(0)
            yield from ({**batch, STEP: together} for batch in step)


def resting(model: nn.Module, start: StartConfig, done: float) -> Iterator[nn.Parameter]:
    """The parameters that do not learn while this share of the steps is done: in its stages all but some of them."""
    if done >= start.indexer + start.gates:
        return
    learning = {"indexer"} if done < start.indexer else {"indexer", "coefficients"}
    gates = [] if done < start.indexer else [m for m in model.modules() if isinstance(m, Gate)]
    kept = {id(p) for gate in gates for p in gate.parameters()}
    for parameter, group_of, _ in grouped_parameters(model):
        if group_of.clip.partition(" ")[0] not in learning and id(parameter) not in kept:
            yield parameter


def clip_gradients(optimizer: torch.optim.Optimizer, limit: float) -> Tensor:
    """Clip every clipping group's gradient norm to `limit`; returns the norm over all groups before clipping."""
    groups: dict[str, list[nn.Parameter]] = {}
    for part in optimizer.param_groups:
        groups.setdefault(part["clip_group"], []).extend(p for p in part["params"] if p.grad is not None)
    norms = [clip(params, limit) for params in groups.values() if params]
    return torch.stack(norms).norm() if len(norms) > 1 else norms[0]

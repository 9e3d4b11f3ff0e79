"""Training steps by Lightning against a loop by hand: losses, noise, clipping, AdamW, schedule, accumulation."""

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.configuration.schema import Config
from experiments.data.tasks_base import IGNORE
from experiments.training import lightning_modules
from experiments.training.lightning_modules import (
    STEP,
    LanguageModelling,
    NonFinite,
    counts,
    first_bad_gradient,
)
from experiments.training.train import make_trainer, silence_lightning
from zoo import Context, LanguageModel

VOCAB, LENGTH, ACCUMULATE, STEPS = 29, 8, 2, 4


class RandomBatches:
    """Batch i depends on i only; two packed sequences or one, of different lengths, and as many answers as i allows."""

    def batch(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCAB, (1, LENGTH + 1), generator=generator)
        targets = tokens[:, 1:].clone()
        targets[:, : index % 5] = IGNORE
        ends = [0, 3, LENGTH] if index % 3 == 0 else [0, LENGTH]
        return {
            "tokens": tokens[:, :-1],
            "targets": targets,
            "cu_seqlens": torch.tensor(ends, dtype=torch.int32),
            "noise_keys": torch.arange(len(ends) - 1) + 7 * index,
        }


def config() -> Config:
    """Timelines with noise and a heavy balance loss; every number of the recipe matters in a few steps."""
    made = Config()
    made.model.pattern, made.model.d_model, made.model.n_heads, made.model.depth = "S", 16, 2, 1
    made.model.mixers.hypergraph.aux_weight = 3.0
    made.trainer.max_steps, made.trainer.accumulate = STEPS, ACCUMULATE
    o = made.optim
    o.lr, o.lr_min, o.warmup_steps, o.clip = 0.02, 0.005, 2, 0.05
    o.beta1, o.beta2, o.eps, o.weight_decay = 0.7, 0.9, 1e-3, 0.5
    return made


def model_of(made: Config) -> LanguageModel:
    return LanguageModel(made.model, vocab_size=VOCAB, seq_len=LENGTH, seed=3)


def losses(model: LanguageModel, batch: dict[str, Tensor], *, noise: bool = True) -> tuple[Tensor, Tensor]:
    """Cross-entropy and weighted auxiliary loss of a micro-batch."""
    keys = batch["noise_keys"] if noise else None
    logits, aux = model(batch["tokens"], Context.of(batch["tokens"], batch["cu_seqlens"], keys))
    return F.cross_entropy(logits[0], batch["targets"][0]), 3.0 * aux["timeline_balance"]


def by_hand(made: Config) -> tuple[LanguageModel, list[float]]:
    """The weights after all steps, and gradient norms before clipping."""
    o, model, norms = made.optim, model_of(made).train(), []
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step in range(STEPS):
        model.zero_grad()
        batches = [RandomBatches().batch(ACCUMULATE * step + i) for i in range(ACCUMULATE)]
        answers = [int((batch["targets"] != IGNORE).sum()) for batch in batches]
        sequences = [len(batch["noise_keys"]) for batch in batches]
        for i, batch in enumerate(batches):
            loss, aux = losses(model, batch)
            (loss * answers[i] / sum(answers) + aux * sequences[i] / sum(sequences)).backward()
        norms.append(math.hypot(*(float(p.grad.norm()) for p in model.parameters())))
        progress = (step - o.warmup_steps) / (STEPS - o.warmup_steps)
        rate = o.lr_min + (o.lr - o.lr_min) * (1 + math.cos(math.pi * progress)) / 2
        rate = o.lr * (step + 1) / o.warmup_steps if step < o.warmup_steps else rate
        with torch.no_grad():
            for p, (m, v) in zip(model.parameters(), moments, strict=True):
                g = p.grad * min(1.0, o.clip / norms[-1])
                m.mul_(o.beta1).add_(g, alpha=1 - o.beta1)
                v.mul_(o.beta2).add_(g * g, alpha=1 - o.beta2)
                if p.dim() == 2:
                    p.mul_(1 - rate * o.weight_decay)
                size = (v / (1 - o.beta2 ** (step + 1))).sqrt() + o.eps
                p.sub_(rate * m / (1 - o.beta1 ** (step + 1)) / size)
    return model, norms


def test_a_run_is_the_loop_that_the_recipe_describes(tmp_path):
    silence_lightning()
    made = config()
    task = LanguageModelling(model_of(made), made, RandomBatches(), {})
    make_trainer(made, torch.device("cpu"), [], tmp_path).fit(task)
    wanted, norms = by_hand(made)
    assert min(norms) > made.optim.clip  # it is clipped at all
    start = model_of(made)
    for name, weight in wanted.named_parameters():
        moved = (weight - start.get_parameter(name)).detach().abs().max()
        torch.testing.assert_close(
            task.model.get_parameter(name), weight, rtol=0, atol=float(1e-3 * moved), msg=name
        )
    assert float(task.last_step["grad_norm"]) == pytest.approx(norms[-1], rel=1e-4)


def test_training_in_bf16_multiplies_in_bf16_and_keeps_weights_and_moments_in_fp32(tmp_path):
    """Updates below about a 256th of a weight would be lost in bf16."""
    silence_lightning()
    made = config()
    made.trainer.precision = "bf16"
    task, products = LanguageModelling(model_of(made), made, RandomBatches(), {}), set()
    for layer in task.model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _layer, _inputs, product: products.add(product.dtype))
    trainer = make_trainer(made, torch.device("cpu"), [], tmp_path)
    trainer.fit(task)
    (optimizer,) = trainer.optimizers
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert len(moments) == 2 * len(list(task.model.parameters()))
    assert {x.dtype for x in [*task.model.parameters(), *moments]} == {torch.float32}
    assert products == {torch.bfloat16}


def test_what_a_step_saw_is_told_apart():
    made = config()
    task = LanguageModelling(model_of(made).train(), made, RandomBatches(), {})
    batch = RandomBatches().batch(0)
    total = task.training_step({**batch, STEP: counts(batch)}, 0).detach() / ACCUMULATE
    loss, aux = (x.detach() for x in losses(task.model, batch))
    assert float(aux) > 0
    assert float(total) == pytest.approx(float(loss + aux))
    assert float(task.last_step["loss"]) == pytest.approx(float(loss))
    assert float(task.last_step["aux_loss"]) == pytest.approx(float(aux), rel=1e-5)
    assert float(task.last_step["aux:timeline_balance"]) == pytest.approx(float(aux) / 3, rel=1e-5)
    silent, _ = losses(task.model, batch, noise=False)
    assert float(silent.detach()) != pytest.approx(float(loss), rel=1e-6)


def test_where_processes_hold_a_sequence_together_a_loss_is_of_the_own_part(monkeypatch):
    made = config()
    task = LanguageModelling(model_of(made).eval(), made, RandomBatches(), {})
    whole = RandomBatches().batch(0)
    own = {name: whole[name][:, : LENGTH // 2] for name in ("tokens", "targets")}
    monkeypatch.setattr(lightning_modules, "own_part", lambda batch: (own, Context.of(own["tokens"])))
    loss, *_ = task.losses(whole)
    logits, _ = task.model(own["tokens"], Context.of(own["tokens"]))
    torch.testing.assert_close(loss, F.cross_entropy(logits[0], own["targets"][0]))


@pytest.mark.parametrize("step", [0, 3])
def test_a_resumed_run_begins_with_the_batch_after_its_last(step: int):
    made = config()
    task = LanguageModelling(model_of(made), made, RandomBatches(), {})
    with (
        mock.patch.object(LanguageModelling, "global_step", step),
        mock.patch.object(LanguageModelling, "on_gpu", False),
    ):
        stream = iter(task.train_dataloader())
    for i in range(3):
        assert torch.equal(next(stream)["tokens"], RandomBatches().batch(ACCUMULATE * step + i)["tokens"])


def test_a_bad_gradient_is_named_where_it_arose():
    """Backward goes from the end to the start and carries it along: the last module that has one is its origin."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert first_bad_gradient(model) == "gradient norm"
    for name in ("0.weight", "0.bias", "1.weight"):
        model.get_parameter(name).grad[0] = torch.nan
    assert first_bad_gradient(model) == "1.weight (its gradient)"


@pytest.mark.parametrize(("processes", "context"), [(1, 1), (4, 1), (4, 2)])
def test_a_loss_is_a_part_of_the_step_s_and_gradients_are_summed_after_the_last_own_micro_batch(
    monkeypatch, processes: int, context: int
):
    """A process of several goes on with a loss that is not finite: the others wait for its gradients."""
    made = config()
    made.trainer.accumulate = 4
    task = LanguageModelling(model_of(made), made, RandomBatches(), {})
    replicas = processes // context
    monkeypatch.setattr(lightning_modules.group, "size", lambda: processes)
    monkeypatch.setattr(lightning_modules.group, "share", lambda count: count // replicas)
    monkeypatch.setattr(lightning_modules.group, "over_replicas", lambda own: replicas * own)
    summed: list[bool] = []
    monkeypatch.setattr(lightning_modules, "sums_gradients", lambda compute, last: summed.append(last))
    loss, told, own = torch.tensor(6.0), torch.tensor([12, 3]), 4 // replicas

    def losses(batch: dict, step: Tensor) -> tuple:
        assert step.tolist() == [12 * replicas, 3 * replicas]
        return loss, {}, {"accuracy": torch.tensor(0.5)}

    monkeypatch.setattr(task, "losses", losses)
    for index in range(4):
        assert task.training_step({STEP: told}, index).item() == 6.0 * own  # which Lightning divides by
    assert summed == ([] if processes == 1 else [(index + 1) % own == 0 for index in range(4)])
    assert {name: x.item() for name, x in task.last_step.items()} == {
        "loss": 6.0 * own,
        "aux_loss": 0.0,
        "accuracy": 0.5 * own,
    }
    loss.fill_(float("inf"))
    monkeypatch.setattr(task, "_bad_module", lambda batch: "layers.0")
    if processes == 1:
        with pytest.raises(NonFinite, match="the loss is not finite"):
            task.training_step({STEP: told}, 4)
    else:
        assert not torch.isfinite(task.training_step({STEP: told}, 4))

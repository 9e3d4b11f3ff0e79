"""Recomputing: the same losses and gradients bit for bit, in less memory; kept out of a run's identity."""

import dataclasses
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from support.program import Lab

from experiments.configuration.compose import architectures
from zoo import LanguageModel, ModelConfig
from zoo.channels.moe import LoadBalance, MoEConfig
from zoo.context import Context
from zoo.interfaces import set_step
from zoo.mixers.gsa import GSAConfig
from zoo.recompute import MODES, Recompute, Replay, block_length

LIKE = ModelConfig(d_model=32, n_heads=2, depth=4)
TOKENS = torch.randint(50, (2, 24), generator=torch.Generator().manual_seed(0))
LATE = 10**6


def model_of(preset: str, *, step: int = LATE, seed: int = 0, **changes) -> LanguageModel:
    config = dataclasses.replace(architectures(LIKE)[preset], **changes)
    model = LanguageModel(config, vocab_size=50, seq_len=24, seed=seed).train()
    set_step(model, step)
    with torch.no_grad():  # coefficients start at zero, where much of what is computed again would not show
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    return model


def loss_of(model: LanguageModel, precision: torch.dtype | None = None, **context) -> torch.Tensor:
    ctx = Context.of(TOKENS, **context)
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        logits, aux = model(TOKENS, ctx)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), TOKENS[:, 1:].flatten()) + model.aux_loss(
        aux
    )


def trained(model: LanguageModel, mode: str, block: int | None = None, **options) -> list[torch.Tensor]:
    """The loss, and the gradients of a step."""
    model.recompute = Recompute(mode, block)
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, **options)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor], model: LanguageModel) -> None:
    names = ["loss", *(name for name, _ in model.named_parameters())]
    assert [name for name, x, y in zip(names, a, b, strict=True) if (x is None) != (y is None)] == []
    assert [n for n, x, y in zip(names, a, b, strict=True) if x is not None and not torch.equal(x, y)] == []


@pytest.mark.parametrize("preset", architectures(LIKE))
def test_every_preset_trains_the_same_bit_for_bit(preset):
    model = model_of(preset)
    keys = torch.tensor([3, 4])
    wanted = trained(model, "none", noise_keys=keys)
    for mode in ("full", "selective"):
        assert_same(trained(model, mode, noise_keys=keys), wanted, model)


@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.long), 2, 3, 9])
def test_blocks_of_any_length(block):
    model = model_of("orthgsa")
    assert_same(trained(model, "selective", block), trained(model, "none"), model)


def test_in_the_warm_up_of_sparse_attention():
    model = model_of("orthgsa", step=0)
    assert_same(trained(model, "selective"), trained(model, "none"), model)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_under_autocast(mode):
    model = model_of("orthgsa")
    half = {"precision": torch.bfloat16}
    assert_same(trained(model, mode, **half), trained(model, "none", **half), model)


def test_an_indexer_without_positions_whose_projections_are_parts_of_one_tensor():
    model = model_of("orthgsa", mixers=dataclasses.replace(LIKE.mixers, gsa=GSAConfig(index_rope=False)))
    assert_same(trained(model, "selective"), trained(model, "none"), model)


def test_experts_count_their_loads_once():
    found = {}
    for mode in MODES:
        config = dataclasses.replace(LIKE, depth=2)
        config.channel.name, config.channel.moe = "moe", MoEConfig()
        model = LanguageModel(config, vocab_size=50, seq_len=24).train()
        gradients = trained(model, mode)
        counts = [m.counts.clone() for m in model.modules() if isinstance(m, LoadBalance)]
        assert sum(int(x.sum()) for x in counts) == 2 * TOKENS.numel() * MoEConfig().top_k
        found[mode] = gradients + counts
    for mode in ("full", "selective"):
        assert all(torch.equal(a, b) for a, b in zip(found[mode], found["none"], strict=True))


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.slow
def test_memory_is_free_as_soon_as_the_backward_is_past(mode, monkeypatch):
    """Without help from the garbage collector, which a GPU's memory would not wake."""
    alive = weakref.WeakSet()
    plain = Replay.__init__
    monkeypatch.setattr(Replay, "__init__", lambda self, *given: (alive.add(self), plain(self, *given))[1])
    model = model_of("orthgsa")
    model.recompute = Recompute(mode)
    gc.collect()
    gc.disable()
    try:
        loss = loss_of(model)
        assert len(alive) >= 4 if mode == "full" else len(alive) > 4  # every indexer's, too
        loss.backward()
        assert len(alive) == 0
    finally:
        gc.enable()


def test_the_length_of_a_block():
    assert block_length(4, 4, 14) == 3  # √(56/6) = 3.06
    assert block_length(4, 4, 60) == 6  # √(240/6) = 6.3
    assert block_length(1, 4, 60) == 3  # one vector between layers, four streams inside: √(60/6) = 3.2
    assert block_length(1, 1, 1) == 1


def test_evaluation_forgets_nothing():
    model = model_of("shc").eval()
    model.recompute = Recompute("full")
    with torch.autograd.graph.save_on_cpu():  # hooks that would clash with others
        wanted = model(TOKENS)[0]
    assert torch.equal(model(TOKENS)[0], wanted)


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.slow
def test_a_run_is_the_same_run_however_it_is_computed(lab: Lab, mode):
    plain, other = (lab.compose("model=orthgsa", f"trainer.recompute={x}")[0] for x in ("none", mode))
    from experiments.planning.plan import plan

    assert plan(other).folder.path == plan(plain).folder.path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.recompute=ful"], "did you mean 'full'"),
        (["trainer.recompute=full", "trainer.compile=true"], "trainer.compile"),
        (["trainer.recompute_block=0"], "at least 1"),
    ],
)
def test_what_cannot_work_is_refused(lab: Lab, words, said):
    assert said in lab.refused(*words)

"""Contracts: gradients reach every parameter, a seed decides the model; every block exports, loads and is counted."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, build, defaults_first, every_case, gradients, keys, tokens

import zoo
from kernels.autograd import backward_share
from zoo import Context, LanguageModel, ModelConfig, cost, registry
from zoo.config import from_dict
from zoo.interfaces import restore, set_step
from zoo.model import on_meta


@every_case
def test_gradients_reach_every_parameter(case):
    model = build(case.config()).train()
    batch, targets = tokens(2, 19), tokens(2, 19, seed=1)
    logits, aux = model(batch, Context.of(batch, noise_keys=keys(2)))
    assert aux.keys() == model.aux_weights.keys()
    assert all(value.shape == () for value in aux.values())
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + model.aux_loss(aux)
    grads = gradients(model, loss)
    assert all(grad.isfinite().all() for grad in grads.values())
    allowed = registry.get(case.kind, case.name).cls.gradient_may_vanish
    silent = [
        name for name, grad in grads.items() if not grad.any() and not name.endswith(allowed or ("\0",))
    ]
    assert silent == [], "no gradient reaches these; where that is meant, name them in gradient_may_vanish"


@pytest.mark.slow
@defaults_first
def test_training_lowers_the_loss(case):
    """Twenty steps on one batch from the real initialisation."""
    model = LanguageModel(case.config(), vocab_size=VOCAB, seq_len=SEQ_LEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch, targets = tokens(2, SEQ_LEN), tokens(2, SEQ_LEN, seed=1)
    ctx = Context.of(batch, noise_keys=keys(2))
    losses = []
    for _ in range(20):
        logits, aux = model(batch, ctx)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + model.aux_loss(aux)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@every_case
def test_a_seed_decides_the_weights(case):
    def made(seed: int, elsewhere: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(elsewhere)
        return LanguageModel(case.config(), vocab_size=VOCAB, seq_len=SEQ_LEN, seed=seed).state_dict()

    one, same, other = made(3, elsewhere=1), made(3, elsewhere=2), made(4, elsewhere=1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if not torch.equal(one[name], other[name])]
    assert "embedding.weight" in drawn
    assert any(name.startswith("layers.1.") for name in drawn)


@every_case
@torch.no_grad()
def test_a_training_pass_repeats_under_the_same_keys(case):
    """Whatever torch's global generator holds, and whatever the model saw before."""
    model = build(case.config()).train()
    batch = tokens(2, 19)
    ctx = Context.of(batch, noise_keys=keys(2))
    torch.manual_seed(1)
    logits, aux = model(batch, ctx)
    torch.manual_seed(2)
    again, aux_again = model(batch, ctx)
    assert torch.equal(logits, again)
    assert all(torch.equal(aux[name], aux_again[name]) for name in aux)
    fresh, _ = copy.deepcopy(model)(batch, Context.of(batch, noise_keys=keys(2)))
    assert torch.equal(logits, fresh)


@every_case
@torch.no_grad()
def test_evaluation_has_no_noise(case):
    model = build(case.config()).eval()
    batch = tokens(2, 19)
    assert torch.equal(model(batch)[0], model(batch, Context.of(batch, noise_keys=keys(2)))[0])


@every_case
@torch.no_grad()
def test_an_exported_model_loads_bit_for_bit(case, tmp_path):
    model = build(case.config(), dtype=torch.float32)
    loaded = zoo.load(zoo.export(model, tmp_path / "model", note="kept"))
    assert not loaded.training
    batch = tokens(2, 19)
    assert torch.equal(loaded(batch)[0], model.eval()(batch)[0])
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["note"] == "kept"
    assert from_dict(ModelConfig, card["model"]) == model.config == loaded.config


@every_case
@pytest.mark.parametrize("step", [0, 100])
@torch.no_grad()
def test_a_model_that_is_made_without_storage_and_filled_computes_the_same(case, step):
    """As transformers makes models. What is no parameter and not saved is computed again; step: of 1,000."""
    model = build(case.config(), dtype=torch.float32).eval()
    set_step(model, step, 1000)
    filled = on_meta(model.config, vocab_size=VOCAB, seq_len=SEQ_LEN).to_empty(device="cpu").eval()
    for x in (*filled.parameters(), *filled.buffers()):
        x.fill_(torch.nan if x.is_floating_point() else -1)
    places = dict(filled.named_parameters()) | dict(filled.named_buffers())
    for name, x in model.state_dict().items():
        places[name].copy_(x)
    restore(filled)
    batch = tokens(2, 19)
    assert torch.equal(filled(batch)[0], model(batch)[0])


@pytest.mark.slow
@defaults_first
def test_cost_is_read_from_the_meta_device(case):
    """Training costs three forwards, except where an operator has declared another backward (kernels.autograd)."""
    config = case.config()
    model = on_meta(config, vocab_size=VOCAB, seq_len=SEQ_LEN)
    real = build(config, dtype=torch.float32)
    assert cost.parameters(model) == sum(p.numel() for p in real.parameters())
    forward = cost.flops_by_operator(model, 32)
    expected = sum(count * (1 + backward_share(operator)) for operator, count in forward.items())
    assert cost.flops_per_token(model, 32, backward=True) == pytest.approx(expected, rel=0.05)
    assert 0 < cost.state_bytes(model, 8) <= cost.state_bytes(model, 64)
    assert cost.state_bytes(model, 64) == cost.state_bytes(real, 64)

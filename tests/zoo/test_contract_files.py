"""Contracts of files and of cost: every block exports, loads and is counted."""

import json

import pytest
import torch
from support.contract_cases import SEQ_LEN, VOCAB, build, defaults_first, every_case, tokens

import zoo
from kernels.autograd import backward_share
from zoo import ModelConfig, cost
from zoo.config import from_dict
from zoo.interfaces import restore, set_step
from zoo.model import on_meta


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

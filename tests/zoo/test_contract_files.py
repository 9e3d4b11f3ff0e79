"""Contracts of files and of cost: every block exports, loads and is counted."""

import json

import pytest
import torch
from support.contract_cases import SEQ_LEN, VOCAB, build, defaults_first, every_case, tokens

import zoo
from kernels.autograd import backward_share
from zoo import ModelConfig, cost
from zoo.config import from_dict
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

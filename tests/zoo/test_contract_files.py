"""Contracts of files and of cost: every block exports, loads and is counted."""

import json

import pytest
import torch
from contract_cases import SEQ_LEN, VOCAB, build, every_case, tokens

import zoo
from zoo import ModelConfig, cost
from zoo.config import from_dict


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
def test_cost_is_read_from_the_meta_device(case):
    config = case.config()
    model = cost.on_meta(config, vocab_size=VOCAB, seq_len=SEQ_LEN)
    real = build(config, dtype=torch.float32)
    assert cost.parameters(model) == sum(p.numel() for p in real.parameters())
    forward, training = (cost.flops_per_token(model, 32, backward=b) for b in (False, True))
    assert training == pytest.approx(3 * forward, rel=0.05)
    assert 0 < cost.state_bytes(model, 8) <= cost.state_bytes(model, 64)
    assert cost.state_bytes(model, 64) == cost.state_bytes(real, 64)

"""Mixers whose decode state is a fixed size: neither it nor the work of a token grows with the text."""

import pytest

from zoo import ModelConfig, cost
from zoo.model import on_meta


@pytest.mark.parametrize("letter", ["C", "K", "M", "O"])
def test_neither_state_nor_work_grows(letter):
    model = on_meta(ModelConfig(pattern=letter), vocab_size=32, seq_len=1024)
    assert 0 < cost.state_bytes(model, 1024) == cost.state_bytes(model, 131_072)
    forward = [cost.flops_per_token(model, length) for length in (1024, 4096)]
    assert abs(forward[1] / forward[0] - 1) < 0.01

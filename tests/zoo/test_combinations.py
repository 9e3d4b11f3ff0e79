"""Any pattern with any residual scheme and any channel mixer builds and trains."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, keys, tokens

from zoo import Context, LanguageModel, ModelConfig, registry

FAST = ("F", "SF")
PATTERNS = [
    pytest.param(pattern, marks=[] if pattern in FAST else pytest.mark.slow)
    for pattern in ("SF", *registry.mixer_by_letter())
]


@pytest.mark.parametrize("channel", registry.blocks("channel"))
@pytest.mark.parametrize("residual", registry.blocks("residual"))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_combination_builds_and_trains_one_step(pattern, residual, channel):
    config = ModelConfig(pattern=pattern, depth=2, d_model=32, n_heads=4)
    config.residual.name, config.channel.name = residual, channel
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch, targets = tokens(2, SEQ_LEN), tokens(2, SEQ_LEN, seed=1)
    losses = []
    for _ in range(2):
        logits, aux = model(batch, Context.of(batch, noise_keys=keys(2)))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        (loss + model.aux_loss(aux)).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]

"""The model around the blocks, of any combination of them: parameter counts, initialisation, shapes."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, keys, tokens
from torch import nn

from zoo import Context, Dims, LanguageModel, ModelConfig, cost, registry
from zoo.channels.swiglu import SwiGLU, SwiGLUConfig
from zoo.model import init_weights, on_meta
from zoo.modules import Gate, RMSNorm


def reference(pattern: str) -> ModelConfig:
    """The WikiText-103 reference model of the HyperGraph report."""
    return ModelConfig(pattern=pattern, depth=14, d_model=768, n_heads=12)


@pytest.mark.parametrize(
    ("pattern", "parameters"),
    [
        ("F*14", 137_710_080),
        ("baseline", 137_710_080),
        ("interlaced_sf", 138_152_448),
        ("late_full", 138_152_448),
    ],
)
def test_the_reference_models_have_exactly_these_parameters(pattern, parameters):
    model = on_meta(reference(pattern), vocab_size=50257, seq_len=512)
    assert cost.parameters(model) == parameters
    assert cost.parameters_non_embedding(model) == parameters - 50257 * 768


def test_an_untied_head_is_the_one_that_scores():
    model = LanguageModel(ModelConfig(tie_embeddings=False), vocab_size=30, seq_len=8)
    batch = torch.arange(8)[None]
    before = model(batch)[0]
    with torch.no_grad():
        model.head.weight.mul_(2)
    torch.testing.assert_close(model(batch)[0], 2 * before)
    model(batch)[0].logsumexp(-1).sum().backward()
    assert model.head.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_swiglu_is_its_definition():
    m = SwiGLU(SwiGLUConfig(), Dims(6, 1, seq_len=8, layer=0, depth=1)).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    up, gate = x @ m.up.weight.T, x @ m.gate.weight.T
    y, aux = m(x)
    torch.testing.assert_close(y, (gate / (1 + torch.exp(-gate)) * up) @ m.down.weight.T)
    assert aux == {}


@torch.no_grad()
def test_the_norm_is_its_definition_in_fp32():
    norm = RMSNorm(8)
    norm.weight.copy_(torch.arange(8))
    x = 1e-3 * torch.randn(3, 8)
    torch.testing.assert_close(
        norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * torch.arange(8)
    )
    big = torch.full((1, 8), 300.0, dtype=torch.float16)
    assert norm(big).dtype == torch.float16
    torch.testing.assert_close(norm(big)[0].float(), torch.arange(8.0))


@pytest.mark.parametrize("residual", ["add", "ohc"])
def test_norm_eps_is_that_of_every_norm_but_the_latents(residual):
    config = ModelConfig(pattern="FGLKMO", depth=6, d_model=32, norm_eps=1e-3)
    config.mixers.attention.qk_norm = config.mixers.gsa.qk_norm = True
    config.residual.name = residual
    model = on_meta(config, vocab_size=11, seq_len=8)
    found = {name: m.eps for name, m in model.named_modules() if isinstance(m, RMSNorm)}
    latents = {name for name in found if name.startswith("layers.2.mixer.")}
    assert {found.pop(name) for name in latents} == {1e-6}
    assert set(found.values()) == {1e-3}
    assert len(found) == 2 * 6 + 1 + 4 + 3


def test_weights_start_normal_and_output_projections_smaller():
    model = LanguageModel(ModelConfig(pattern="SF", depth=6, d_model=128), vocab_size=512, seq_len=8)
    smaller = 0.02 / math.sqrt(2 * 6)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
            continue
        std = smaller if name.endswith(("o_proj.weight", "down.weight")) else 0.02
        assert abs(parameter.std().item() / std - 1) < 0.1, name
        assert abs(parameter.mean().item()) < 0.1 * std, name
        assert parameter.abs().max() > 2.5 * std, name


def test_a_mixer_may_start_the_projections_that_it_is_made_of():
    """A whole draws after its parts: otherwise they would overwrite what it chose."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.gate = nn.Linear(4, 4), Gate(4, 4)

        def init_weights(self, generator: torch.Generator) -> None:
            nn.init.constant_(self.part.weight, 7.0)
            nn.init.constant_(self.part.bias, 0.5)
            nn.init.constant_(self.gate.bias, 3.0)

    model = LanguageModel(ModelConfig(depth=1), vocab_size=11, seq_len=8)
    model.added = Whole()
    init_weights(model, seed=0)
    assert (model.added.part.weight == 7).all()
    assert (model.added.part.bias == 0.5).all()
    assert (model.added.gate.bias == 3).all()


@torch.no_grad()
def test_a_tied_head_is_the_embedding():
    model = LanguageModel(ModelConfig(depth=1), vocab_size=11, seq_len=8)
    assert model.head is None
    hidden = []
    model.norm.register_forward_hook(lambda _m, _x, out: hidden.append(out))
    logits, _ = model(tokens(2, 5) % 11)
    torch.testing.assert_close(logits, hidden[0] @ model.embedding.weight.T)


@torch.no_grad()
def test_probing_positions_of_packed_sequences():
    ctx = Context.of(tokens(1, 9), torch.tensor([0, 4, 5, 9], dtype=torch.int32), torch.tensor([7, 8, 9]))
    assert ctx.positions.tolist() == [[0, 1, 2, 3, 0, 0, 1, 2, 3]]
    assert ctx.sequences.tolist() == [[0, 0, 0, 0, 1, 2, 2, 2, 2]]
    assert ctx.noise_keys.tolist() == [[7, 7, 7, 7, 8, 9, 9, 9, 9]]
    x = torch.arange(9.0).view(1, 9, 1)
    assert ctx.sequence_mean(x).flatten().tolist() == [1.5, 4.0, 6.5]


@pytest.mark.parametrize(
    ("shape", "cu_seqlens", "noise_keys", "said"),
    [
        ((5,), None, None, "[batch, time], not (5,)"),
        ((2, 5), [0, 5, 10], None, "batch size 1, not tokens of shape (2, 5)"),
        ((1, 5), [0, 3], None, "from 0 to 5"),
        ((1, 5), [1, 5], None, "from 0 to 5"),
        ((1, 5), [0, 3, 3, 5], None, "without empty sequences"),
        ((1, 5), [0, 4, 3, 5], None, "rise"),
        ((1, 5), [5], None, "int32 [N+1]"),
        ((2, 5), None, [1, 2, 3], "[2], one per sequence, not (3,)"),
        ((1, 5), [0, 2, 5], [1], "[2], one per sequence, not (1,)"),
    ],
)
def test_a_context_that_does_not_fit_is_refused_with_shapes(shape, cu_seqlens, noise_keys, said):
    cu_seqlens = None if cu_seqlens is None else torch.tensor(cu_seqlens, dtype=torch.int32)
    noise_keys = None if noise_keys is None else torch.tensor(noise_keys)
    with pytest.raises(ValueError) as caught:
        Context.of(torch.zeros(shape, dtype=torch.int64), cu_seqlens, noise_keys)
    assert said in str(caught.value)


def test_building_a_model_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    LanguageModel(ModelConfig(pattern="KOF", depth=3), vocab_size=7, seq_len=8)
    assert torch.equal(torch.rand(4), wanted)


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

"""Factorised streams: the basis, what a layer hands on, and the memory that a training step saves by it."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, VOCAB, build, gradients, tokens

from zoo import LanguageModel, ModelConfig, cost
from zoo.interfaces import Dims
from zoo.model import on_meta
from zoo.recompute import Recompute
from zoo.residuals.shc import FactorisedStreams, SHCConfig, harmonics

D, N = 6, 4
DIMS = Dims(D, 2, seq_len=8, layer=0, depth=3)


def streams(n: int = N) -> torch.Tensor:
    return torch.randn(2, 5, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def config_with(depth: int = 3, pattern: str = "SF", **options) -> ModelConfig:
    config = ModelConfig(pattern=pattern, depth=depth, d_model=32, n_heads=4)
    config.residual.name = "shc"
    for key, value in options.items():
        setattr(config.residual.shc, key, value)
    return config


# The harmonics are kept in fp32: products of up to 8 entries, each a few units of 6e-8 off, applied to numbers up
# to 4. A basis that is not one is off by 0.1.
HARMONIC = 8 * 4 * 4 * 2.0**-24


def factorised(n: int, r: int) -> FactorisedStreams:
    module = FactorisedStreams(SHCConfig(n_streams=n, factorise=r), DIMS).double()
    if module.turn is not None:
        torch.nn.init.normal_(module.turn, generator=torch.Generator().manual_seed(0))
    return module


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_harmonics_are_an_orthonormal_basis_with_the_mean_first(n):
    basis = harmonics(n)
    assert basis.shape == (n, n)
    torch.testing.assert_close(basis.T @ basis, torch.eye(n), rtol=0, atol=HARMONIC)
    torch.testing.assert_close(basis[:, 0], torch.full((n,), n**-0.5))


@pytest.mark.parametrize(("n", "r"), [(4, 1), (4, 2), (4, 3), (4, 4), (3, 2), (2, 1)])
@torch.no_grad()
def test_factorised_streams_are_a_projection_that_keeps_the_mean(n, r):
    module, x = factorised(n, r), streams(n=n)
    u = module.basis()
    torch.testing.assert_close(u.mT @ u, torch.eye(r, dtype=torch.float64), rtol=0, atol=HARMONIC)
    once = module.unpack(module.pack(x))
    torch.testing.assert_close(once, torch.einsum("ir,jr,btjd->btid", u, u, x))
    torch.testing.assert_close(module.unpack(module.pack(once)), once, rtol=0, atol=HARMONIC)
    torch.testing.assert_close(once.mean(-2), x.mean(-2), rtol=0, atol=HARMONIC)
    assert module.pack(x).shape == (2, 5, r, D)
    assert torch.allclose(once, x, atol=HARMONIC) == (r == n)


def test_factorised_streams_are_not_rounded_under_autocast():
    module, x = factorised(4, 2).float(), streams().float()
    wanted = module.pack(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module.pack(x), wanted)
        found = module.unpack(wanted)
    torch.testing.assert_close(found, module.basis() @ wanted)


def test_factorise_changes_the_model_between_layers_only():
    """With r = n it is the model without; with r = 1 it is another, unless there is one layer."""
    batch = tokens(2, 9)
    for depth, same in ((1, True), (3, False)):
        outputs = []
        for r in (0, 4, 1):
            outputs.append(build(config_with(depth, factorise=r))(batch)[0])
        torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-5)
        assert torch.allclose(outputs[2], outputs[0]) == same


def test_factorise_saves_stream_state_and_no_attention_cache():
    def bytes_of(**options) -> tuple[int, int]:
        model = on_meta(config_with(**options), vocab_size=VOCAB, seq_len=SEQ_LEN)
        return cost.stream_bytes(model), cost.state_bytes(model, 64)

    whole, cache = bytes_of()
    assert whole == 4 * 32 * 4
    assert bytes_of(factorise=1) == (whole // 4, cache)
    assert bytes_of(factorise=2) == (whole // 2, cache)
    config = ModelConfig(pattern="SF", depth=3, d_model=32, n_heads=4)
    config.residual.name = "add"
    plain = on_meta(config, vocab_size=VOCAB, seq_len=SEQ_LEN)
    assert (cost.stream_bytes(plain), cost.state_bytes(plain, 64)) == (32 * 4, cache)


# Training


def trained(model: LanguageModel, length: int = 16) -> dict[str, torch.Tensor]:
    """The loss of a batch, and all gradients."""
    batch = tokens(2, length)
    logits, aux = model(batch)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens(2, length, seed=1).flatten()) + model.aux_loss(aux)
    return {"loss": loss.detach(), **gradients(model, loss)}


@pytest.mark.parametrize("r", [1, 2])
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_what_is_computed_again_is_what_was_saved_bit_for_bit(r, mode, monkeypatch):
    model = build(config_with(factorise=r, pattern="FC")).train()
    model.recompute = Recompute(mode)
    found = trained(model)
    monkeypatch.setattr(Recompute, "groups", lambda _, layers, *__, **___: layers)
    wanted = trained(model)
    assert found.keys() == wanted.keys()
    assert [name for name in found if not torch.equal(found[name], wanted[name])] == []


def test_gradients_are_those_of_streams_projected_between_layers(monkeypatch):
    """U·Uᵀ·x at a layer's entrance, with everything saved."""
    model = build(config_with(factorise=2, pattern="FC")).train()
    assert any(name.endswith("turn") for name, _ in model.named_parameters())
    found = trained(model)
    projected = lambda self, x: self.basis() @ (self.basis().mT @ x)  # noqa: E731
    monkeypatch.setattr(FactorisedStreams, "pack", lambda self, x: x)
    monkeypatch.setattr(FactorisedStreams, "unpack", projected)
    monkeypatch.setattr(FactorisedStreams, "carried", lambda self: self.n)
    for name, wanted in trained(model).items():
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-9, msg=name)

"""The Gumbel noise: its distribution, and that every coordinate counts."""

import math

import pytest
import torch

from kernels import gumbel_noise
from kernels.noise import _mix


def grid(sequences: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.arange(sequences)[:, None].expand(sequences, tokens) + 1_234_567_890_123
    return keys, torch.arange(tokens).expand(sequences, tokens)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())).double())[0, 1])


def test_moments():
    noise = gumbel_noise(*grid(64, 256), 0, 4, 6).double()
    assert noise.shape == (64, 256, 4, 6)
    # Standard errors: 0.0020 for the mean, 0.0054 for the variance.
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.03


def test_distribution():
    noise = gumbel_noise(*grid(64, 256), 1, 4, 6).double().flatten().sort().values
    exact = torch.exp(-torch.exp(-noise))
    empirical = torch.arange(1, noise.numel() + 1) / noise.numel()
    # Kolmogorov and Smirnov: 1.95/√n is passed by chance once in a thousand times.
    assert (exact - empirical).abs().max() < 1.95 / math.sqrt(noise.numel())


def test_neighbours_along_every_coordinate_are_uncorrelated():
    keys, positions = grid(65, 257)
    noise = gumbel_noise(keys, positions, 0, 5, 7)
    other_layer = gumbel_noise(keys, positions, 1, 5, 7)
    high_bits = gumbel_noise(keys + (1 << 40), positions, 0, 5, 7)
    pairs = {
        "key": (noise[1:], noise[:-1]),
        "high bits of the key": (noise, high_bits),
        "position": (noise[:, 1:], noise[:, :-1]),
        "layer": (noise, other_layer),
        "head": (noise[:, :, 1:], noise[:, :, :-1]),
        "choice": (noise[..., 1:], noise[..., :-1]),
        "key against position": (noise[1:, :-1], noise[:-1, 1:]),
    }
    for name, (a, b) in pairs.items():
        assert abs(correlation(a, b)) < 5 / math.sqrt(a.numel()), name


def test_choices_win_equally_often():
    winners = gumbel_noise(*grid(64, 256), 3, 4, 6).argmax(-1).flatten()
    shares = torch.bincount(winners, minlength=6) / winners.numel()
    assert (shares - 1 / 6).abs().max() < 0.008


def test_every_bit_of_the_hash_depends_on_every_bit_of_its_input():
    x = torch.randint(0, 2**32, (4096,), generator=torch.Generator().manual_seed(0))
    for bit in range(32):
        changed = _mix(x) ^ _mix(x ^ (1 << bit))
        flips = ((changed[:, None] >> torch.arange(32)) & 1).double().mean(0)
        assert (flips - 0.5).abs().max() < 0.06


@pytest.mark.slow
def test_a_draw_is_a_function_of_its_coordinates():
    keys, positions = grid(3, 11)
    noise = gumbel_noise(keys, positions, 2, 4, 6)
    assert torch.equal(noise, gumbel_noise(keys, positions, 2, 4, 6))
    alone = gumbel_noise(keys[1:2, 5:6], positions[1:2, 5:6], 2, 4, 6)
    torch.testing.assert_close(noise[1:2, 5:6], alone)  # log rounds by place; another draw is about 1 off
    compiled = torch.compile(gumbel_noise, fullgraph=True, backend="aot_eager")
    assert torch.equal(noise, compiled(keys, positions, 2, 4, 6))


def test_these_draws_never_change():
    keys, positions = torch.tensor([[-5, 7]]), torch.tensor([[0, 131_071]])
    wanted = torch.tensor([0.0960095, -0.3810508, 2.0626040, -1.7829754, -0.3841694, 0.6012028])
    torch.testing.assert_close(
        gumbel_noise(keys, positions, 13, 1, 3).flatten(), wanted, rtol=1e-6, atol=1e-6
    )


def test_extreme_hashes_give_finite_noise():
    for keys in (torch.tensor([[-(2**63), 2**63 - 1, 0, -1]]), torch.arange(2**16)[None]):
        assert gumbel_noise(keys, torch.zeros_like(keys), 0, 2, 3).isfinite().all()


def test_errors_name_the_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3\), \(2, 4\)"):
        gumbel_noise(torch.zeros(2, 3).long(), torch.zeros(2, 4).long(), 0, 1, 1)
    with pytest.raises(ValueError, match="int64"):
        gumbel_noise(torch.zeros(2, 3), torch.zeros(2, 3).long(), 0, 1, 1)

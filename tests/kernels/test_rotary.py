"""RoPE against the complex multiplication that defines it."""

import math

import pytest
import torch
from support.kernel_cases import normal

from kernels import RopeScaling, rope, rope_each
from kernels.rotary import angles, rotate


def by_definition(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """One pair at a time, in Python's complex numbers."""
    out = x.clone()
    batch, time, heads, width = x.shape
    for b in range(batch):
        for t in range(time):
            for h in range(heads):
                for i in range(width // 2):
                    z = complex(x[b, t, h, 2 * i], x[b, t, h, 2 * i + 1])
                    angle = float(positions[b, t, h]) * base ** (-2 * i / width)
                    z *= complex(torch.tensor(angle).double().cos(), torch.tensor(angle).double().sin())
                    out[b, t, h, 2 * i], out[b, t, h, 2 * i + 1] = z.real, z.imag
    return out


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3)])
def test_equals_complex_multiplication(shape):
    x = normal(2, 5, 3, 6)
    positions = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(0))
    full = {1: positions[None, :, None], 2: positions[..., None], 3: positions}[len(shape)].expand(2, 5, 3)
    torch.testing.assert_close(rope(x, positions, 100.0), by_definition(x, full, 100.0), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("columns", "begin"), [(22, 2), (22, 1), (21, 2)])
def test_a_part_of_a_wider_row_turns_like_its_copy(columns, begin):
    """Of a row of several projections, at even and odd places in memory; its gradient goes back to these places."""
    wide = normal(2, 5, columns).requires_grad_()
    part = wide[..., begin : begin + 18].unflatten(-1, (3, 6))
    turned, copy = (rope(x, torch.arange(5), 100.0) for x in (part, part.contiguous()))
    assert torch.equal(turned, copy)
    for got, wanted in zip(
        *(torch.autograd.grad(x.square().sum(), wide) for x in (turned, copy)), strict=True
    ):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("width", [None, 4])
def test_parts_of_one_product_turn_in_every_form_alike(width):
    wide, found = normal(2, 70, 36, dtype=torch.float32).requires_grad_(), []
    for name in ("reference", "torch", "triton"):
        parts = wide.unflatten(-1, (6, 6)).split([3, 2, 1], 2)
        turned = rope_each(parts, torch.arange(70), 100.0, width=width, backend=name)
        loss = sum((scale * x.square().cumsum(1)).sum() for scale, x in enumerate(turned, start=1))
        found.append([*turned, *torch.autograd.grad(loss, wide)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-5)


def test_compiled_form_equals_eager_form():
    x = normal(2, 5, 3, 6)
    cos, sin = angles(torch.arange(5)[:, None], 6, 1e4, torch.float64)
    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, cos, sin), rotate(x, cos, sin))


def test_scores_depend_on_the_distance_only():
    q, k = normal(1, 1, 1, 8, seed=1), normal(1, 1, 1, 8, seed=2)
    at = lambda x, p: rope(x, torch.tensor([p]), 1e4)  # noqa: E731
    near, far = (at(q, 7) * at(k, 4)).sum(), (at(q, 907) * at(k, 904)).sum()
    torch.testing.assert_close(near, far)


def test_position_zero_changes_nothing_and_norms_stay():
    x = normal(2, 4, 3, 8)
    assert torch.equal(rope(x, torch.zeros(4, dtype=torch.long), 1e4), x)
    torch.testing.assert_close(rope(x, torch.arange(4), 1e4).norm(dim=-1), x.norm(dim=-1))


def test_half_precision_is_rotated_in_single():
    x = normal(1, 600, 1, 8).to(torch.bfloat16)
    wanted = rope(x.float(), torch.arange(600), 1e4)
    got = rope(x, torch.arange(600), 1e4)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, wanted.to(torch.bfloat16))


def test_a_slice_of_a_projection_is_taken_as_it_is():
    fused = normal(2, 4, 3, 17, dtype=torch.float32)
    x = fused[..., 1:9]
    assert torch.equal(rope(x, torch.arange(4), 1e4), rope(x.clone(), torch.arange(4), 1e4))


def test_gradient():
    x = normal(1, 3, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope(x, torch.arange(3), 10.0), (x,))


def test_errors_name_the_shapes():
    with pytest.raises(ValueError, match=r"even D, got \(1, 3, 2, 5\)"):
        rope(normal(1, 3, 2, 5), torch.arange(3), 1e4)
    with pytest.raises(ValueError, match=r"x \(1, 3, 2, 4\), got \(4,\)"):
        rope(normal(1, 3, 2, 4), torch.arange(4), 1e4)


WIDTH, BASE, LENGTH = 32, 1e4, 512


def scaled_by_definition(scaling: RopeScaling) -> list[float]:
    """Pair by pair as the papers write it: a pair keeps r of its frequency, the rest is divided."""
    found = []
    for i in range(WIDTH // 2):
        frequency = BASE ** (-2 * i / WIDTH)
        turns = LENGTH * frequency / (2 * math.pi)
        kept = 0.0
        if scaling.kind == "llama3":
            kept = min(1.0, max(0.0, (turns - scaling.slow) / (scaling.fast - scaling.slow)))
        if scaling.kind == "yarn":
            ends = [
                WIDTH * math.log(LENGTH / (2 * math.pi * n)) / (2 * math.log(BASE))
                for n in (scaling.fast, scaling.slow)
            ]
            first, last = math.floor(ends[0]), math.ceil(ends[1])
            kept = 1 - min(1.0, max(0.0, (i - first) / (last - first)))
        found.append(frequency * kept + frequency / scaling.factor * (1 - kept))
    return found


@pytest.mark.parametrize(
    ("scaling", "divided", "kept"),
    [
        (RopeScaling("linear", 4.0), 16, 0),
        (RopeScaling("llama3", 8.0, LENGTH, 1.0, 4.0), 8, 6),
        (RopeScaling("yarn", 16.0, LENGTH, 1.0, 32.0), 8, 2),
    ],
    ids=lambda x: getattr(x, "kind", ""),
)
def test_frequencies_for_longer_texts_are_those_of_the_papers(scaling, divided, kept):
    """By the angle of every pair at position 1: so many are divided by the factor, so many stay."""
    cos, sin = angles(torch.tensor([1]), WIDTH, BASE, torch.float64, scaling)
    found = torch.atan2(sin, cos)[0]
    torch.testing.assert_close(found, torch.tensor(scaled_by_definition(scaling), dtype=torch.float64))
    plain = BASE ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    ratio = found / plain
    assert int((ratio - 1 / scaling.factor).abs().lt(1e-9).sum()) == divided
    assert int((ratio - 1).abs().lt(1e-9).sum()) == kept


def test_an_amplitude_multiplies_what_is_rotated():
    x, options = normal(2, 5, 3, 8), {"positions": torch.arange(5), "base": 100.0, "width": 4}
    scaling = RopeScaling("yarn", 4.0, 40, amplitude=1.5)
    plain = RopeScaling("yarn", 4.0, 40)
    got, wanted = (rope(x, scaling=s, **options) for s in (scaling, plain))
    torch.testing.assert_close(got[..., :4], 1.5 * wanted[..., :4])
    assert torch.equal(got[..., 4:], x[..., 4:])


def test_the_first_channels_turn_as_a_narrower_vector_and_the_others_stay():
    x, y, at = normal(2, 5, 3, 9), normal(2, 5, 1, 9), torch.arange(5)
    for part, turned in zip((x, y), rope_each((x, y), at, 100.0, width=6), strict=True):
        torch.testing.assert_close(turned[..., :6], rope(part[..., :6], at, 100.0))
        assert torch.equal(turned[..., 6:], part[..., 6:])
    with pytest.raises(ValueError, match="even"):
        rope(x, at, 100.0, width=3)


def test_angles_are_kept_for_positions_until_these_change():
    """The second call finds them; positions that are written to, or others, have angles of their own."""
    x, at = normal(1, 5, 2, 8), torch.arange(5)
    first = rope(x, at, 100.0)
    assert torch.equal(rope(x, at, 100.0), first)
    assert not torch.equal(rope(x, at, 10.0), first)
    at += 3
    torch.testing.assert_close(rope(x, at, 100.0), rope(x, torch.arange(3, 8), 100.0))
    with torch.inference_mode():
        rope(x, at, 1000.0)
    rope(x.requires_grad_(), at, 1000.0).sum().backward()

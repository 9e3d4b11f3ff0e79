"""RoPE against the complex multiplication that defines it."""

import pytest
import torch
from support.kernel_cases import normal

from kernels import rope
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

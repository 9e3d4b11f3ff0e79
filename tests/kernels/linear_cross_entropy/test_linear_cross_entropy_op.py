"""linear_cross_entropy in chunks against all logits at once: losses, gradients, what is right, memory and errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import assert_agree, normal, rmse_ratio
from support.margins import below
from support.peak_memory import printed_by
from support.triton_cases import OUTPUT_LIMIT

from kernels import linear_cross_entropy
from kernels.ops.linear_cross_entropy import FEWEST

IGNORED = -100
FORMS = pytest.mark.parametrize("backend", ["torch", "triton", "reference"])


def inputs(tokens: int, vocabulary: int, width: int = 6, dtype: torch.dtype = torch.float32):
    return [normal(tokens, width, dtype=dtype, seed=1), normal(vocabulary, width, dtype=dtype, seed=2)]


def some_targets(tokens: int, vocabulary: int, every: int = 3) -> torch.Tensor:
    """Targets of which one in `every` is left out."""
    targets = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))
    targets[::every] = IGNORED
    return targets


@pytest.mark.parametrize("tokens", [1, FEWEST["cpu"] + 3, 2 * FEWEST["cpu"]])
@pytest.mark.parametrize("every", [1, 3, 10**6], ids=["none", "some", "nearly all"])
def test_chunks_equal_all_logits_at_once(tokens, every):
    """In a vocabulary of which a chunk holds the fewest tokens that a chunk has."""
    vocabulary = 5000
    targets = some_targets(tokens, vocabulary, every)

    def plain(x, weight):
        return F.cross_entropy(F.linear(x, weight), targets, reduction="sum", ignore_index=IGNORED)[None]

    def ours(x, weight):
        return linear_cross_entropy(x, weight, targets, backend="torch")[0][None]

    assert_agree(ours, plain, inputs(tokens, vocabulary, dtype=torch.float64))


@FORMS
def test_what_is_right_is_the_first_of_the_likeliest_tokens(backend):
    """Also among equal logits; a token that is not asked for is not right."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    weight = torch.tensor([[-1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
    targets = torch.tensor([3, 2, 0, 1, IGNORED])
    *_, right = linear_cross_entropy(x, weight, targets, right=True, backend=backend)
    assert right.tolist() == [False, True, True, False, False]


@FORMS
def test_each_tokens_nats_add_up_and_have_no_gradient(backend):
    (x, weight), targets = inputs(12, 5), some_targets(12, 5).view(3, 4)
    x = x.view(3, 4, -1).requires_grad_()
    total, nats, right = linear_cross_entropy(x, weight, targets, backend=backend)
    wanted = F.cross_entropy(F.linear(x, weight).mT, targets, reduction="none", ignore_index=IGNORED)
    assert right is None
    assert not nats.requires_grad
    torch.testing.assert_close(nats, wanted.detach())
    torch.testing.assert_close(total, nats.sum())


@pytest.mark.parametrize("vocabulary", [5, pytest.param(4100, marks=pytest.mark.slow)])
def test_kernels_equal_the_definition(vocabulary):
    """In one tile of logits and in two."""
    targets = some_targets(7, vocabulary)
    pair = [
        lambda x, w, b=backend: linear_cross_entropy(x, w, targets, backend=b)[0][None]
        for backend in ("triton", "reference")
    ]
    assert_agree(*pair, inputs(7, vocabulary))


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_half_precision(backend):
    x, weight = (y.requires_grad_() for y in inputs(40, 9, dtype=torch.float16))
    targets = some_targets(40, 9)
    found, wanted = (
        [total.detach(), *torch.autograd.grad(total, (x, weight))]
        for total, *_ in (
            linear_cross_entropy(x, weight, targets, backend=name) for name in (backend, "reference")
        )
    )
    for got, want in zip(found, wanted, strict=True):
        below(rmse_ratio(got, want), OUTPUT_LIMIT)


@FORMS
def test_large_logits_overflow_nowhere(backend):
    x, weight = torch.tensor([[300.0]], requires_grad=True), torch.tensor([[1.0], [-1.0], [0.5]])
    total, *_ = linear_cross_entropy(x, weight, torch.tensor([2]), backend=backend)
    total.backward()
    assert total.item() == pytest.approx(150.0)
    assert x.grad.item() == pytest.approx(0.5)


MEMORY = """
import torch
from kernels import linear_cross_entropy
from support.peak_memory import peak

x, weight = torch.randn(8192, 8, requires_grad=True), torch.randn(8192, 8, requires_grad=True)
targets = torch.zeros(8192, dtype=torch.int64)
linear_cross_entropy(x[:9], weight, targets[:9])[0].backward()
before = peak()
linear_cross_entropy(x, weight, targets)[0].backward()
print(peak() - before)
"""


@pytest.mark.slow
def test_logits_of_all_tokens_are_never_there():
    """They are 256 MiB, and a gradient as large; a chunk's are 8."""
    assert printed_by(MEMORY) < 64 * 1024


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_autocast_multiplies_in_its_dtype_and_gradients_keep_that_of_the_weight(bf16):
    x, weight = (y.requires_grad_() for y in inputs(300, 50))
    targets = some_targets(300, 50)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        total, *_ = linear_cross_entropy(x, weight, targets)
        wanted = F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")
    assert total.dtype == torch.float32
    found = torch.autograd.grad(total, (x, weight))
    for got, want in zip(found, torch.autograd.grad(wanted, (x, weight)), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=2e-2 if bf16 else 1e-4, atol=2e-2 if bf16 else 1e-5)


@FORMS
def test_targets_decide_no_graph(backend):
    call = partial(linear_cross_entropy, backend=backend)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for every in (1, 2):
        targets = some_targets(8, 5, every)
        pair = [lambda x, w, f=f, y=targets: f(x, w, y)[0][None] for f in (compiled, call)]
        assert_agree(*pair, inputs(8, 5))


def test_a_target_outside_the_vocabulary_is_an_error():
    with pytest.raises((RuntimeError, IndexError), match=r"out of bounds"):
        linear_cross_entropy(*inputs(2, 5), torch.tensor([1, 5]))

"""At T = 16,384: how many scores the indexer computes, and how much memory selecting and attending need."""

import pytest
import torch
from support.peak_memory import printed_by
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels import lightning_topk
from kernels.indices import BUDGET, LARGEST

LONG, KEPT = 16_384, 32


class Watch(TorchDispatchMode):
    """scores: entries that were ranked; largest: elements of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = self.largest = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.ge.Tensor and args[0].dim() == 3:  # ranks, by the lowest kept
            self.scores += args[0].numel()
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return result


@pytest.mark.parametrize("time", [2048, pytest.param(LONG, marks=pytest.mark.long)])
def test_scores_are_half_of_all_pairs_and_never_many_at_once(time):
    heads, width = 2, 2
    inputs = torch.randn(1, time, heads, width), torch.randn(1, time, width), torch.rand(1, time, heads)
    with Watch() as watch:
        lightning_topk(*inputs, torch.zeros(heads), k=KEPT)
    pairs = time * (time + 1) // 2
    assert pairs <= watch.scores <= pairs + time * LARGEST // 2
    assert watch.largest <= max(BUDGET["cpu"], time * KEPT)
    assert watch.largest < time * time // 2


STEP = """
import torch
from support.peak_memory import peak
from kernels import indexer_kl, lightning_topk, sparse_attention
torch.set_num_threads(1)
def step(time, kept):
    q, k, v = (torch.randn(1, time, heads, 8, requires_grad=True) for heads in (2, 1, 1))
    indexer = torch.randn(1, time, 1, 4), torch.randn(1, time, 4), torch.rand(1, time, 1), torch.zeros(1)
    indexer = [x.requires_grad_() for x in indexer]
    indices = lightning_topk(*indexer, k=kept)
    loss = indexer_kl(q, k, *indexer, torch.tensor(10.0), indices=indices)
    (loss + sparse_attention(q, k, v, indices).square().mean()).backward()
step(256, 8)
before = peak()
step({time}, {kept})
print(peak() - before)
"""


@pytest.mark.long
def test_peak_memory_of_a_training_step_is_far_below_one_matrix_of_pairs():
    """Selection, loss and attention, forward and backward; one fp32 T × T matrix would be 1 GiB."""
    code = STEP.replace("{time}", str(LONG)).replace("{kept}", str(KEPT))
    assert printed_by(code) < 300 * 1024

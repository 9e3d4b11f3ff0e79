"""One stable sort by group: the rows of a group next to each other, in their original order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grouped:
    """Rows sorted by group, and by row within a group.

    order    int64 [M], the row at each place of the sorted axis
    offsets  int64 [groups + 1], the place where each group begins, and where the last ends
    """

    order: Tensor
    offsets: Tensor

    def places(self) -> Tensor:
        """The place of each row on the sorted axis, int64 [M]: the inverse of `order`."""
        place = torch.arange(self.order.shape[0], device=self.order.device)
        return torch.empty_like(self.order).scatter(0, self.order, place)


def sort_by_group(group: Tensor, groups: int) -> Grouped:
    """Sort rows by their group; group int64 [M], values in [0, groups), not checked.

    Every shape follows from the arguments' shapes, so that it can be traced, and nothing waits for the GPU.
    """
    ordered, order = group.sort(stable=True)
    return Grouped(order, torch.searchsorted(ordered, torch.arange(groups + 1, device=group.device)))

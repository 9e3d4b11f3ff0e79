"""Which micro-batches a process computes, and their losses put together in the order of one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.parallel import group


def numbers(start: int) -> Iterator[int]:
    """The numbers of this process's micro-batches from `start` on, without end: start + r, start + r + N, ...

    r: the number of the process, of N. A step has a multiple of N micro-batches, so each of them has one owner.
    Processes that hold sequences together (trainer.context) are one here.
    """
    return itertools.count(start + group.replica(), group.replicas())


def in_order(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The scalars of a step's micro-batches, by name, of all processes in the micro-batches' order.

    own: those of this process. All have to call it, with as many micro-batches and the same names.
    """
    if group.size() == 1:
        return own
    names = list(own[0])
    values = torch.stack([torch.stack([scalars[name].float() for name in names]) for scalars in own])
    first = group.gathered(values)[:: group.context()]  # those of one sequence have the same losses
    rows = first.transpose(0, 1).flatten(0, 1)  # [turns · replicas, names]
    return [dict(zip(names, row.unbind(), strict=True)) for row in rows.unbind()]

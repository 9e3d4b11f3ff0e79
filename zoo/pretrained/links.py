"""Tensors of ours that hold the numbers of published tensors, by name, and how one becomes the other.

A family is a list of these links for every layer (zoo.pretrained.families). A link is used in both directions, and on
the meta device too, where `write` tells the shapes that published tensors must have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Link:
    """Names of ours and of theirs; read: their tensors -> ours, write: ours -> theirs, both in the names' order."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Callable[..., Sequence[Tensor]]
    write: Callable[..., Sequence[Tensor]]

    def inside(self, ours: str, theirs: str) -> Link:
        """The link with these prefixes of names."""
        return dataclasses.replace(
            self,
            ours=tuple(f"{ours}{name}" for name in self.ours),
            theirs=tuple(f"{theirs}{name}" for name in self.theirs),
        )


def same(ours: str, theirs: str) -> Link:
    """One tensor, as it is."""
    return Link((ours,), (theirs,), lambda x: (x,), lambda x: (x,))


def rotated(ours: str, theirs: str, width: int) -> Link:
    """Rows [H·width, ...] of what is rotated: here adjacent pairs (2i, 2i+1) of a head, there (i, i + width/2).

    So a gain or a bias before the rotation moves with the rows that it belongs to.
    """

    def pairs(x: Tensor) -> tuple[Tensor]:
        return (x.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2),)

    def halves(x: Tensor) -> tuple[Tensor]:
        return (x.unflatten(0, (-1, width // 2, 2)).transpose(1, 2).flatten(0, 2),)

    return Link((ours,), (theirs,), pairs, halves)


def shaped(ours: str, theirs: str, shape: Sequence[int], published: Sequence[int]) -> Link:
    """One tensor of this shape, there of another."""
    return Link((ours,), (theirs,), lambda x: (x.reshape(shape),), lambda x: (x.reshape(published),))


def stacked(ours: Sequence[str], theirs: str, rows: Sequence[int], heads: int = 1) -> Link:
    """Several tensors, there one: for every head its rows [rows_i, ...] of the first, then of the second, ..."""

    def read(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.flatten(0, 1) for part in x.unflatten(0, (heads, -1)).split(list(rows), 1))

    def write(*parts: Tensor) -> tuple[Tensor]:
        return (torch.cat([part.unflatten(0, (heads, -1)) for part in parts], 1).flatten(0, 1),)

    return Link(tuple(ours), (theirs,), read, write)


def parted(ours: str, theirs: Sequence[str], *, taps: bool = False) -> Link:
    """One tensor, there several of equal parts of its rows; taps: of a convolution [D, k], there [D, 1, k]."""

    def read(*parts: Tensor) -> tuple[Tensor]:
        return (torch.cat([part.squeeze(1) if taps else part for part in parts]),)

    def write(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.unsqueeze(1) if taps else part for part in x.chunk(len(theirs)))

    return Link((ours,), tuple(theirs), read, write)


def experts(ours: str, theirs: str, number: int) -> Link:
    """The matrices of all experts [E, ...], there one each; theirs: a name with {} for the expert."""
    names = tuple(theirs.format(e) for e in range(number))
    return Link((ours,), names, lambda *x: (torch.stack(x),), lambda x: x.unbind())

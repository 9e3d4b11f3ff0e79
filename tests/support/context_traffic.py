"""Numbers that a rank receives in the forward pass of a mixer, counted, and by the table of docs/context.md."""

from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.contract_cases import WIDTH, Case, build
from zoo import Context


def received(name: str, ctx: Context) -> int:
    """What this rank receives in a forward pass of a mixer on its shard, from other ranks."""
    mixer, own, count = build(Case("mixer", name).config()).layers[0].mixer, ctx.cut(), Count()
    x = torch.randn((*own.positions.shape, WIDTH), dtype=torch.float64)
    with count.counting(), torch.no_grad():
        mixer(x, own)
    return count.numbers


class Count:
    """Counts what arrives by the three functions of torch.distributed that exchanges call."""

    def __init__(self) -> None:
        self.numbers = 0

    def counting(self) -> mock._patch:
        """While inside."""
        functions = {name: getattr(self, name) for name in ("all_gather", "all_to_all_single", "P2POp")}
        self.real = {name: getattr(dist, name) for name in functions}
        return mock.patch.multiple(dist, **functions)

    def all_gather(self, parts: list[Tensor], x: Tensor, group=None) -> None:
        self.numbers += (len(parts) - 1) * x.numel()
        self.real["all_gather"](parts, x, group=group)

    def all_to_all_single(self, arrived: Tensor, parts: Tensor, group=None) -> None:
        self.numbers += arrived[1:].numel()
        self.real["all_to_all_single"](arrived, parts, group=group)

    def P2POp(self, operation, x: Tensor, **options):
        self.numbers += x.numel() if operation is dist.irecv else 0
        return self.real["P2POp"](operation, x, **options)


def by_token(name: str, m: nn.Module) -> list[tuple[int, int]]:
    """What grows with T: (numbers a token, bytes of each under bf16 autocast), divided by N where swapped."""
    if name == "attention":
        return [(2 * m.kv_heads * m.width, 2)]
    if name == "mla":
        return [(m.kv_rank + m.rope_dim, 2)]
    if name == "nsa":
        return [(6 * m.kv_heads * m.width, 2)]
    if name == "gsa":
        return [(2 * m.kv_heads * m.width + m.indexer.width, 2)]
    if name == "hypergraph":
        return [(4 * m.heads * m.width, 2), (m.heads, 4), (m.heads, 8)]
    if name == "path_fox":
        return [(2 * m.heads * m.width + 3 * m.kv_heads * m.width, 2), (m.heads + m.kv_heads, 4)]
    return []


SWAPPED = ("hypergraph", "path_fox")


def halo(name: str, m: nn.Module) -> int:
    """Numbers a row of the batch that come from the rank before."""
    convolutions = [x for x in m.modules() if type(x).__name__ == "ShortConvolution"]
    return sum(x.weight.shape[0] * (x.weight.shape[1] - 1) for x in convolutions)


def folded(name: str, m: nn.Module) -> int:
    """Numbers of a shard's transition and increment, a row of the batch."""
    if name == "kda":
        return m.heads * 2 * m.width**2
    if name == "mom":
        return (m.memories + m.shared) * m.heads * 2 * m.width**2
    return m.heads * m.width * (2 * m.width + 1) if name == "mesanet" else 0


def tabled(name: str, mixer: nn.Module, batch: int, time: int, ranks: int) -> float:
    """What the table says that a rank after the first receives."""
    tokens = sum(numbers for numbers, _ in by_token(name, mixer)) * batch * time
    tokens /= ranks if name in SWAPPED else 1
    states = folded(name, mixer) * batch * ranks
    return (1 - 1 / ranks) * (tokens + states) + halo(name, mixer) * batch

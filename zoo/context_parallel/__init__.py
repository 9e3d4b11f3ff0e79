"""All-gather context parallelism: a sequence's contiguous shards on the ranks of a process group.

Four exchanges, each with its backward: `gather` keys along time, `halo` of a convolution, `fold` of recurrent states
along the ranks, `swap` of time for heads; and `total`, a sum over ranks for losses. Mixers ask the context for what is
made of them (`operations`), which is nothing but the operation itself where `ctx.shard` is None.

Every rank computes the same loss from totals and runs its own backward; gradients of parameters are then added up
over ranks (`add_gradients`).
"""

from zoo.context_parallel.operations import whole
from zoo.context_parallel.shard import Shard
from zoo.context_parallel.sums import add_gradients, total

__all__ = ["Shard", "add_gradients", "total", "whole"]

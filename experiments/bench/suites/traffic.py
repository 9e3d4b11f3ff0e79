"""suite=traffic: bytes that fused kernels leave out, counted; nothing is timed, and every machine gives the same.

    unfused_bytes   inputs and outputs of every PyTorch operator of the definition (backend "reference"), a lower bound;
                    of a part that a kernel takes in: the kernel's bytes without it and those of its operators
    bytes           the least that the fused kernel moves: inputs and outputs once, and what it saves for its backward;
                    of the indexer's projections: of their one product, and of joining the weights
    saved           1 − bytes/unfused_bytes
    claimed         the saving that the OrthGSA document's table of memory access gives, where it has the row

Sizes of cases as in suite=kernels, one sequence of each of bench.lengths, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from experiments.bench import cases
from experiments.bench.cases import CASES, Call, InputFactory, matching_names
from experiments.bench.memory_traffic import bytes_of
from experiments.bench.result_table import machine_facts
from experiments.bench.timing import MODES
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device
from zoo.mixers.gsa import Indexer

CLAIMED = {
    "hyper_coefficients": (("hyper_coefficients",), 0.66),
    "hyper_pre and hyper_post": (("hyper_pre", "hyper_post"), 0.70),
    "lightning_topk": (("lightning_topk",), 0.85),
    "sparse_attention": (("sparse_attention",), 0.85),
}
"""Row -> the cases whose calls it adds up, and what the document claims for them."""
LENGTHS = [1024, 2048]
COLUMNS = [
    *("suite", "model", "mode", "device", "precision", "tokens", "batch"),
    *("unfused_bytes", "bytes", "saved", "claimed", "machine", "torch", "commit"),
]


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every operation of the document's table and every part that a kernel takes in, length and mode."""
    device, rows = pick_device(config.device), []
    for name in matching_names(config.bench.cases, [*CLAIMED, *FUSED_PARTS]):
        for length in config.bench.lengths or LENGTHS:
            for mode in _modes(name):
                rows.append(_row(name, length, mode, device))
                tqdm.write(_line(rows[-1]))
    return rows


def _modes(name: str) -> list[str]:
    if name == GRADIENTS:
        return ["forward+backward"]
    differentiable = name in FUSED_PARTS or all(CASES[case].backward for case in CLAIMED[name][0])
    return [mode for mode in MODES if mode == "forward" or differentiable]


def _row(name: str, length: int, mode: str, device: torch.device) -> dict[str, Any]:
    count = FUSED_PARTS.get(name) or partial(_operation_bytes, *CLAIMED[name][:1])
    unfused, fused = count(length, mode, device)
    return {
        "suite": "traffic",
        "model": name,
        "mode": mode,
        "precision": "float32",
        "tokens": length,
        "batch": 1,
        "unfused_bytes": unfused,
        "bytes": fused,
        "saved": 1 - fused / unfused,
        "claimed": CLAIMED[name][1] if name in CLAIMED else None,
        **machine_facts(device),
    }


def _operation_bytes(
    names: tuple[str, ...], length: int, mode: str, device: torch.device
) -> tuple[int, float]:
    calls = [call for name in names for call in CASES[name].calls(length, length, device, torch.float32)]
    return sum(_unfused_bytes(call, mode) for call in calls), sum(call.bytes(mode) for call in calls)


def _unfused_bytes(call: Call, mode: str) -> int:
    leaves = [x for x in call.tensors() if x.requires_grad]
    return bytes_of(lambda: call.run("reference"), leaves, mode)


def _line(row: dict[str, Any]) -> str:
    apart, fused = row["unfused_bytes"] / 1e6, row["bytes"] / 1e6
    claimed = "" if row["claimed"] is None else f", claimed {row['claimed']:.0%}"
    return (
        f"{row['model']:<29}{row['mode']:<18}{row['tokens']:>6} tokens  {apart:10.1f} MB by operators"
        f"{fused:10.1f} MB fused  saved {row['saved']:.0%}{claimed}"
    )


# Operators that kernels fuse: bytes moved with the part inside the kernel, and with the part beside it.

HEADS, HEAD = 4, 64
"""The indexer's, as in the cases of `lightning_topk`."""


@dataclass(frozen=True)
class Part:
    """A part of a call: the option that puts it into the kernel, and the operators that else compute it.

    make   the call with the part inside
    apart  (the kernel's output without the part, the option's tensor) -> the output with it
    """

    make: Callable[[InputFactory], Call]
    option: str
    apart: Callable[[Tensor, Tensor], Tensor]


def _gate(o: Tensor, logits: Tensor) -> Tensor:
    return o * torch.sigmoid(logits)


def _norm(y: Tensor, gain: Tensor) -> Tensor:
    """PyTorch's layer norm, one operator each way: its RMSNorm is that on a GPU, and several on a CPU."""
    return F.layer_norm(y, gain.shape, gain)


def _part_bytes(part: Part, length: int, mode: str, device: torch.device) -> tuple[float, float]:
    call = part.make(InputFactory(1, length, device, torch.float32))
    without = replace(call, options={key: x for key, x in call.options.items() if key != part.option})
    operand = call.options[part.option]
    with torch.no_grad():
        output = without.run("torch")
    leaves = [output.requires_grad_(), operand]
    operators = bytes_of(lambda: part.apart(*leaves), leaves, mode)
    return without.bytes(mode) + operators, call.bytes(mode)


def _gradient_bytes(length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Return the bytes of a sub-block's three readers of streams, apart and together.

    Apart, autograd adds their gradients; together, each kernel adds its own to the last.
    """
    d = InputFactory(1, length, device, torch.float32)
    apart, together = (
        sum(call.bytes(mode) for call in (*calls, cases.post(d)))
        for calls in ((cases.coefficients(d), cases.normed_pre(d)), cases.reading(d))
    )
    x, y, z = (d.normal(cases.STREAMS, cases.WIDTH).detach() for _ in range(3))
    sums = bytes_of(lambda: x + y + z, [], "forward") if "backward" in mode else 0
    return apart + sums, together


def _projection_bytes(length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Return the bytes of the indexer's projections as three products and as its own one; x takes no gradient."""
    indexer = Indexer(cases.WIDTH, HEADS, HEAD).to(device)
    weights = [linear.weight for linear in (indexer.q_proj, indexer.k_proj, indexer.w_proj)]
    x = InputFactory(1, length, device, torch.float32).normal(cases.WIDTH).detach()
    apart = bytes_of(lambda: [F.linear(x, weight) for weight in weights], weights, mode)
    return apart, bytes_of(lambda: indexer.projections(x), weights, mode)


PROJECTIONS, GRADIENTS = "indexer's projections", "gradients of the streams"
FUSED_PARTS: dict[str, Callable[[int, str, torch.device], tuple[float, float]]] = {
    "gate of sparse_attention": partial(
        _part_bytes, Part(lambda d: cases.gated_sparse(d)[0], "gate_logits", _gate)
    ),
    "norm of hyper_pre": partial(_part_bytes, Part(cases.normed_pre, "gain", _norm)),
    PROJECTIONS: _projection_bytes,
    GRADIENTS: _gradient_bytes,
}
"""Row -> its bytes apart and together, of a length, a mode of `timing.MODES` and a device."""

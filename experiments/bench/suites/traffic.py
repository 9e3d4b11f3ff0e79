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

import functools
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench.cases import CASES, Call, matching_names
from experiments.bench.fused_parts import FUSED_PARTS, GRADIENTS
from experiments.bench.memory_traffic import bytes_of
from experiments.bench.result_table import machine_facts
from experiments.bench.timing import MODES
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device

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
    count = FUSED_PARTS.get(name) or functools.partial(_operation_bytes, *CLAIMED[name][:1])
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
    cases: tuple[str, ...], length: int, mode: str, device: torch.device
) -> tuple[int, float]:
    calls = [call for case in cases for call in CASES[case].calls(length, length, device, torch.float32)]
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

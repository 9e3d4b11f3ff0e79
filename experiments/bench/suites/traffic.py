"""suite=traffic: bytes that fused kernels leave out, counted; nothing is timed, and every machine gives the same.

    unfused_bytes   inputs and outputs of every PyTorch operator of the definition (backend "reference"), a lower bound
    bytes           the least that the fused kernel moves: inputs and outputs once, and what it saves for its backward
    saved           1 − bytes/unfused_bytes
    claimed         the saving that the OrthGSA document's table of memory access gives

Sizes of cases as in suite=kernels, one sequence of each of bench.lengths, in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from experiments import machine
from experiments.bench.cases import CASES, matching_names
from experiments.bench.cases.call import Call
from experiments.bench.passes import forward, forward_backward
from experiments.bench.result_table import machine_facts
from experiments.bench.traffic import OperatorBytes
from experiments.schema import Config

CLAIMED = {
    "hyper_coefficients": (("hyper_coefficients",), 0.66),
    "hyper_pre and hyper_post": (("hyper_pre", "hyper_post"), 0.70),
    "lightning_topk": (("lightning_topk",), 0.85),
    "sparse_attention": (("sparse_attention",), 0.85),
}
"""Row -> the cases whose calls it adds up, and what the document claims for them."""
LENGTHS = [1024, 2048]
MODES = {"forward": forward, "forward+backward": forward_backward}
COLUMNS = [
    *("suite", "model", "mode", "device", "precision", "tokens", "batch"),
    *("unfused_bytes", "bytes", "saved", "claimed", "machine", "torch", "commit"),
]


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every operation of the document's table, length and mode."""
    device, rows = machine.pick(config.device), []
    for name in matching_names(config.bench.cases, list(CLAIMED)):
        for length in config.bench.lengths or LENGTHS:
            for mode in _modes(name):
                rows.append(_row(name, length, mode, device))
                tqdm.write(_line(rows[-1]))
    return rows


def _modes(name: str) -> list[str]:
    differentiable = all(CASES[case].backward for case in CLAIMED[name][0])
    return [mode for mode in MODES if mode == "forward" or differentiable]


def _row(name: str, length: int, mode: str, device: torch.device) -> dict[str, Any]:
    cases, claimed = CLAIMED[name]
    calls = [call for case in cases for call in CASES[case].calls(length, length, device, torch.float32)]
    unfused = sum(_unfused_bytes(call, mode) for call in calls)
    fused = sum(work.bytes for call in calls for work in call.work() or [] if work.way in mode.split("+"))
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
        "claimed": claimed,
        **machine_facts(device),
    }


def _unfused_bytes(call: Call, mode: str) -> int:
    leaves = [x for x in call.tensors() if x.requires_grad]
    with OperatorBytes() as counted:
        MODES[mode](lambda: call.run("reference"), leaves)
    return counted.total


def _line(row: dict[str, Any]) -> str:
    apart, fused = row["unfused_bytes"] / 1e6, row["bytes"] / 1e6
    return (
        f"{row['model']:<26}{row['mode']:<18}{row['tokens']:>6} tokens  {apart:10.1f} MB by operators"
        f"{fused:10.1f} MB fused  saved {row['saved']:.0%}, claimed {row['claimed']:.0%}"
    )

"""suite=attention: every backend of `attention` and `timeline_attention` that can serve, in one process."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import Call, InputFactory
from experiments.bench.timing import SHORT_LENGTHS, lengths_within_budget
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device

TIMELINES = 6
REFERENCE_LIMIT = 4096
"""The reference writes T×T scores by definition; past this length it would only measure memory."""
MODES = {"forward": timing.forward, "forward+backward": timing.forward_backward}


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of forward and forward+backward at every length; ratio: speed against the `torch` backend."""
    device = pick_device(config.device)
    rows: list[dict[str, Any]] = []
    for length in lengths_within_budget(config.bench, SHORT_LENGTHS, "attention"):
        for call in _calls(config, length, device):
            rows += _compare(call, length, device, config.bench.repeats)
    return rows


def _calls(config: Config, length: int, device: torch.device) -> list[Call]:
    """Dense and routed attention on the same q, k, v of the configured width."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    heads, width = config.model.n_heads, config.model.d_model // config.model.n_heads
    torch.manual_seed(config.seed)
    make = InputFactory(1, length, device, dtype)
    qkv = [make.normal(heads, width) for _ in range(3)]
    options = {"n_timelines": TIMELINES, "rope_base": 1e4}
    return [
        Call("attention", tuple(qkv), {}),
        Call("timeline_attention", (*qkv, make.random_integers(TIMELINES, heads)), options),
    ]


def _compare(call: Call, length: int, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """A row for every backend that can serve, in both modes."""
    backends = [b for b in call.registry.backends if b != "reference" or length <= REFERENCE_LIMIT]
    able = [backend for backend in backends if _serves(call, backend)]
    leaves = [x for x in call.tensors() if x.requires_grad]
    rows = []
    for mode, work in MODES.items():
        forms = {b: functools.partial(work, functools.partial(call.run, b), leaves) for b in able}
        times = timing.interleaved(forms, repeats, device)
        peer = timing.summary(times["torch"])["milliseconds_median"]
        for backend, milliseconds in times.items():
            row = result_table.row(
                "attention",
                call.operation,
                milliseconds,
                peer,
                device,
                backend=backend,
                mode=mode,
                precision=str(leaves[0].dtype).removeprefix("torch."),
                tokens=length,
                peak_memory_bytes=timing.peak_memory(forms[backend], device),
            )
            tqdm.write(result_table.format_row(row))
            rows.append(row)
    return rows


def _serves(call: Call, backend: str) -> bool:
    """Return whether a backend takes the call, and has the memory for it."""
    try:
        call.run(backend)
    except (ValueError, torch.OutOfMemoryError):
        return False
    return True

"""The peak arithmetic rate that MFU is a share of: a GPU's from its data sheet, others measured once per machine.

While other processes run, a product is timed too slow, and a peak that is too low makes an MFU above 1. So products of
several sizes, the shortest far shorter than a scheduler's slice, are timed repeatedly for a second or two, and the
fastest counts. It is cached under the facts that decide it. Where training is faster, it is measured again; a rate that
is still above it has no MFU.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.data.cache import load_fact, store_fact
from experiments.system import machine

# Dense bf16 tensor-core peak in FLOP/s, from the vendors' data sheets.
GPU_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}

SIZES, ROUNDS, PAUSE = (384, 768, 1536), 8, 0.05
"""Rows and columns of the products, rounds, and seconds between rounds."""


class Peak(NamedTuple):
    """A rate in FLOP/s, and the source of the number."""

    flops: float
    source: str


def peak(device: torch.device, cache: Path, above: float = 0.0) -> Peak:
    """The peak of this device at this process's thread count; `cache`: the cache folder (data.cache_dir).

    The cached peak is returned unless it is below `above`, a rate (FLOP/s) that training reached: it was measured on a
    busy machine then, is measured again, and the higher one is cached. So is the peak of an unreadable file.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for key, flops in GPU_PEAKS.items():
            if key in name:
                return Peak(flops, f"{key} data sheet, dense bf16")
    key = _key(device)
    file = (
        cache / "peaks" / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]}.json"
    )
    flops = _cached(file)
    if flops <= above:
        flops = max(flops, _measure(device))
        if flops > _cached(file):  # another process may have found a higher one meanwhile
            store_fact(file, {**key, "flops": flops, "measured": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    return Peak(
        flops, f"measured once per machine: fp32 matrix products, {key['threads']} thread(s), the fastest"
    )


def utilisation(rate: float, peak: float) -> float | None:
    """MFU: rate / peak, both in FLOP/s; None where it is above 1, for then the peak is wrong."""
    share = rate / peak
    return share if share <= 1 else None


def _key(device: torch.device) -> dict[str, Any]:
    """The facts that decide how fast products are, as plain values."""
    facts = machine.describe(device)
    kept = {name: facts[name] for name in ("host_cpu", "cores", "gpu", "threads", "capability")}
    return {**kept, "torch": torch.__version__}


def _cached(file: Path) -> float:
    """The peak in a file of the cache; 0 where it holds none."""
    fact = load_fact(file, {"flops": float})
    return max(0.0, float(fact["flops"])) if fact else 0.0


def _measure(device: torch.device) -> float:
    """FLOP/s of the fastest fp32 product of two n×n matrices: 2·n³ / seconds."""
    best = 0.0
    places = [(n, torch.ones(n, n, device=device), torch.empty(n, n, device=device)) for n in SIZES]
    for _ in range(ROUNDS):
        for n, a, out in places:
            began = time.perf_counter()
            float(torch.mm(a, a, out=out)[0, 0])  # reading one number waits for the product
            best = max(best, 2 * n**3 / (time.perf_counter() - began))
        time.sleep(PAUSE)
    return best

"""Synthetic run folders in the format that runs are written in."""

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from support.pretended_runs import SUMMARY

from analysis import write_report

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

VERMILION = "#d55e00"

METRICS_HEADER = (
    "step,tokens,split,loss,aux_loss,perplexity,lr,grad_norm,seconds,tokens_per_second,mfu,peak_memory_bytes"
)


def evaluation(loss: float) -> dict:
    """All four metrics of a split of 60,000 tokens, 40,000 words and 250,000 bytes."""
    tokens, words, size = 60_000, 40_000, 250_000
    found = {"loss": loss, "perplexity": math.exp(loss), "word_perplexity": math.exp(loss * tokens / words)}
    found |= {"bits_per_byte": loss * tokens / size / math.log(2), "stride": 64}
    return {**found, "tokens": tokens, "words": words, "bytes": size}


def curve(final: float, steps: int = 300, every: int = 25) -> str:
    """metrics.csv of a run that falls from ln 4096 to ``final``."""
    lines, start = [METRICS_HEADER + ",aux:load_balance"], math.log(4096)
    for step in range(every, steps + 1, every):
        loss = final + (start - final) * math.exp(-5 * step / steps)
        shared = f"{step},{step * 1024}"
        rest = f"0.003,0.8,{step * 0.14:.2f},7400,,310000000,0.01"
        lines.append(f"{shared},train,{loss + 0.03:.6f},0.001,{math.exp(loss + 0.03):.4f},{rest}")
        if step % (2 * every) == 0:
            lines.append(f"{shared},validation,{loss:.6f},,{math.exp(loss):.4f},,,{step * 0.14:.2f},,,,")
    return "\n".join(lines) + "\n"


def merge(base: dict, changes: dict) -> dict:
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        merged[key] = merge(merged[key], value) if isinstance(merged.get(key), dict) else value
    return merged


def write_run_folder(
    experiment: Path, name: str = "transformer", seed: int = 0, loss: float = 3.0, **changes
) -> Path:
    """Write one complete run; ``changes`` are merged into its summary, an ``option`` into its identity."""
    validation = changes.pop("validation_loss", loss - 0.02)
    option = changes.pop("option", None)
    summary = merge(SUMMARY, {"experiment": experiment.name, "name": name, "seed": seed, **changes})
    summary.setdefault("metrics", {"validation": evaluation(validation), "test": evaluation(loss)})
    identity = {
        "seed": seed,
        "option": option,
        **{key: summary[key] for key in ("model", "recipe")},
        "data": [summary["data"][key] for key in ("fingerprint", "tokenizer", "train")],
    }
    run = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    summary.setdefault("run", run)
    folder = experiment / run
    folder.mkdir(parents=True)
    (folder / "identity.json").write_text(json.dumps(identity))
    (folder / "config.yaml").write_text(
        f"model:\n  preset: {summary['model']['preset']}\nseed: {seed}\nname: {name}\n"
    )
    (folder / "metrics.csv").write_text(curve(validation))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


LAYOUTS = {"interlaced_sf": "SFSF", "late_full": "SSFF", "bookend": "FSSF"}


def hypergraph(layout: str) -> dict:
    """Changes that make a run one of the HyperGraph layouts."""
    model = {"preset": "hypergraph", "layout": layout, "pattern": LAYOUTS[layout]}
    model |= {"color": VERMILION, "family": "sparse"}
    found = {"name": f"hypergraph {layout}", "model": model, "parameters": 461_536}
    return {**found, "flops_per_token": {"forward": 1.3e6, "training": 3.9e6}, "tokens_per_second": 5210.0}


def write_quickstart_folder(experiment: Path) -> Path:
    """Dense and three layouts, two seeds each: eight runs."""
    losses = {"interlaced_sf": 3.04, "late_full": 3.07, "bookend": 3.12}
    for seed in (0, 1):
        write_run_folder(experiment, seed=seed, loss=3.0 + 0.004 * seed)
        for layout, loss in losses.items():
            write_run_folder(experiment, seed=seed, loss=loss - 0.003 * seed, **hypergraph(layout))
    return experiment


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    return write_run_folder


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    return write_quickstart_folder(tmp_path / "results" / "quickstart")


@pytest.fixture
def layout_changes() -> Callable[[str], dict]:
    return hypergraph


def write_latencies(path: Path) -> Path:
    """Dense quadratic, SF cheaper per pair but with an overhead: equal where 3e-6·T² = 10."""
    lines = [
        "suite,model,backend,device,tokens,batch,milliseconds_median,milliseconds_low,milliseconds_high,"
        "peak_memory_bytes"
    ]
    for tokens in (512, 1024, 2048, 4096, 8192, 16384):
        dense, sparse = 4 + 4e-6 * tokens**2, 14 + 1e-6 * tokens**2
        for model, value in (("transformer", dense), ("hypergraph interlaced_sf", sparse)):
            lines.append(
                f"latency,{model},torch,NVIDIA H200,{tokens},1,{value},{0.95 * value},{1.08 * value},1000000"
            )
    lines.append("harness,transformer,torch,NVIDIA H200,128,8,200,190,210,1000000")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def latency_csv(tmp_path: Path) -> Path:
    return write_latencies(tmp_path / "latency.csv")


@pytest.fixture(scope="session")
def quickstart_and_latencies(tmp_path_factory) -> Path:
    """The folder of `quickstart` with `latency_csv` in it: not to be changed by tests."""
    folder = write_quickstart_folder(tmp_path_factory.mktemp("stored") / "results" / "quickstart")
    write_latencies(folder / "latency.csv")
    return folder


@pytest.fixture(scope="session")
def eleven(tmp_path_factory) -> Path:
    """The report of the stored quickstart of all eleven architectures, drawn once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "eleven"
    with FileLock(f"{place}.lock"):
        page = place / "index.html"
        return page if page.is_file() else write_report(PUBLISHED / "quickstart", place)

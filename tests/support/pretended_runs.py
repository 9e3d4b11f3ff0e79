"""Results of runs that nobody trained, from a few words a run: for what is said of them, branch by branch."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.loading.columns import RUN_COLUMNS
from analysis.loading.results import Results, _runs_frame, _unfinished_frame
from analysis.loading.tables import SPLIT_TABLES, none

COLORS = ("#4D4D4D", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
BLUE = "#0072b2"
HELD_OUT = {"tokens": 60_000, "words": 40_000, "bytes": 250_000, "documents": 45}
MODEL = {"preset": "transformer", "pattern": "FFFF", "layout": None, "depth": 4, "d_model": 64}
MODEL |= {"residual": "add", "channel": "swiglu", "color": BLUE, "family": "attention"}
ATTENTION = {"letter": "F", "name": "attention", "title": "full attention", "family": "attention"}
ATTENTION |= {"color": BLUE, "mask": "causal"}
SPLITS = {"train": {"tokens": 1_200_000, "words": 800_000, "bytes": 5_000_000, "documents": 900}}
DATA = {**dict.fromkeys(("name", "train", "validation", "test"), "pydocs"), "tokenizer": "bpe"}
DATA |= {"vocab_size": 4096, "seq_len": 128, "pack": "stream", "fingerprint": "f00d", "unigram_entropy": 6.5}
DATA |= {"splits": {**SPLITS, "validation": HELD_OUT, "test": HELD_OUT}}
RECIPE = {"steps": 300, "batch_size": 8, "accumulate": 1, "tokens_per_step": 1024, "lr": 3e-3, "lr_min": 3e-4}
RECIPE |= {"warmup_steps": 30, "optimizer": "adamw", "schedule": "cosine", "weight_decay": 0.1, "clip": 1.0}
RECIPE |= {"precision": "32"}
MACHINE = {"host_cpu": "Example CPU", "cores": 2, "memory_bytes": 8 * 2**30, "gpu": None, "threads": 1}
MACHINE |= {"capability": "AVX512", "platform": "Linux"}
SUMMARY = {"schema": 1, "model": MODEL, "blocks": [ATTENTION], "data": DATA, "recipe": RECIPE}
SUMMARY |= {"parameters": 460_000, "parameters_non_embedding": 200_000}
SUMMARY |= {"flops_per_token": {"forward": 1.4e6, "training": 4.2e6}}
SUMMARY |= {"state_bytes": {"1024": 2_097_152, "8192": 16_777_216, "131072": 268_435_456}}
SUMMARY |= {"best_step": 300, "steps": 300, "stopped": "finished", "tokens": 307_200, "seconds": 41.5}
SUMMARY |= {"tokens_per_second": 7402.4, "mfu": None, "mfu_peak_flops": 1e11, "mfu_peak_source": "estimated"}
SUMMARY |= {"peak_memory_bytes": 310_000_000, "workers": 1, "load": 0.9, "dirty": False, "machine": MACHINE}
SUMMARY |= {"commit": "0123456789abcdef0123456789abcdef01234567", "finished": "2026-11-21T02:00:00+00:00"}
SUMMARY |= {"versions": {"python": "3.11.9", "torch": "2.13.0", "lightning": "2.6.6"}}
SUMMARY |= {"command": "python run.py model=transformer"}
"""The summary of a run as it is written."""
BLOCKS = {
    "F": {key: ATTENTION[key] for key in ("letter", "name", "mask")}
    | {"title": "Full attention", "color": "#4D4D4D"},
    "K": {"letter": "K", "name": "delta", "title": "Delta rule", "color": "#009E73", "mask": "recurrent"},
}


def _dug(source: str) -> Any:
    value: Any = SUMMARY
    for key in source.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


_OWN = {c.name: _dug(c.source) for c in RUN_COLUMNS if c.source and c.name not in ("color", "blocks")}
TEXT = {name: value for name, value in _OWN.items() if value is not None}
TEXT |= {"experiment": "pretended", "layout": None, "family": "one", "data": "books", "precision": "fp32"}
TEXT |= {f"{part}_set": f"books {n}" for n, part in enumerate(("training", "validation", "test"), 1)}
TEXT |= {"train_split_tokens": 1_234_567, "state_bytes_context": 262_144, "test_tokens": 60_000}
TEXT |= {"test_stride": 64, "best_step": 290, "mfu": 0.31, "mfu_peak_source": "measured", "gpu": None}
TEXT |= {"versions": '{"python": "3.12.1", "torch": "2.13.0"}', "capability": "AVX2"}
TASK = {**TEXT, "data": "mqar", **dict.fromkeys(("pack", "train_split_tokens", "train_split_bytes"))}
TASK |= dict.fromkeys(("unigram_entropy", "test_tokens", "test_stride"))
TASK |= dict.fromkeys(("training_set", "validation_set", "test_set"), "mqar (length 16, pairs 4)")
TASK |= {"tokenizer": "none", "vocab_size": 64, "seq_len": 16, "chance": 0.03125, "shortcut": 0.38}
TASK |= {"hardness": "tokens between a key and its question", "memorised": 0.03}


def model(name: str, losses: Iterable[float | None], **changes: Any) -> list[dict[str, Any]]:
    """A run a test loss, with seeds 1, 2, ...; None: not tested. changes: of all of them, a list: one a run."""
    found = []
    for place, loss in enumerate(losses):
        own = {key: value[place] if isinstance(value, list) else value for key, value in changes.items()}
        base = TASK if "data" in own and own["data"] != "books" else TEXT
        preset = name.split()[0]
        pattern = "FFFF" if preset == "transformer" else "KKKK"
        row = {**base, "name": name, "preset": preset, "pattern": pattern, "seed": place + 1, **own}
        row |= {"test_loss": loss, **_scores(loss)} if base is TEXT else {"test_loss": 1.0, **_answered(loss)}
        row.setdefault("validation_loss", None if loss is None else abs(loss - 0.02))
        found.append({**row, **own})
    return found


def _scores(loss: float | None) -> dict[str, float]:
    if loss is None:
        return {}
    return {
        "test_perplexity": math.exp(loss),
        "test_word_perplexity": math.exp(1.5 * loss),
        "test_bits_per_byte": loss / 4 / math.log(2),
    }


def _answered(accuracy: float | None) -> dict[str, Any]:
    if accuracy is None:
        return {"test_loss": None}
    return {"test_accuracy": accuracy, "test_sequence_accuracy": accuracy**2, "test_loss": 2 * (1 - accuracy)}


def pretended(*models: list[dict[str, Any]], **more: Any) -> Results:
    """Results of these runs, labelled and sorted as loaded ones are; more: fields of Results, `selection`, tables."""
    rows = [_identified(dict(row), place) for place, row in enumerate(row for rows in models for row in rows)]
    runs = _runs_frame(rows)
    metrics = pd.concat([_curve(row) for row in runs.itertuples()], ignore_index=True)
    tables = {name: _table(name, runs, more.pop(name, None)) for name in SPLIT_TABLES}
    recorded = more.pop("selection", None)
    results = Results(runs, metrics, more.pop("problems", []), _unfinished_frame(more.pop("unfinished", [])))
    results = replace(results, tables=tables, **more)
    results.__dict__["selection"] = none() if recorded is None else recorded
    return results


def _identified(row: dict[str, Any], place: int) -> dict[str, Any]:
    """With run, folder and the hashes of its setting and sweep, in words: what a model differs in by itself."""
    own = (row["name"], row["depth"], row["d_model"], row["data"], row["training_set"], row["pattern"])
    own += tuple(row[name] for name in ("planned_steps", "weight_decay", "vocab_size", "seq_len", "layout"))
    used = {letter: BLOCKS[letter] for letter in row["pattern"] if letter in BLOCKS}
    row.setdefault("run", f"run{place:03d}")
    row.setdefault("color", COLORS[sum(map(ord, row["name"])) % len(COLORS)])
    row.setdefault("blocks", json.dumps(list(used.values())))
    row.setdefault("sweep", " ".join(map(str, own)))
    row.setdefault("setting", f"{row['sweep']} {row['lr']:g}")
    return {"folder": f"nowhere/{row['run']}", **row}


def _curve(row: tuple) -> pd.DataFrame:
    """A loss that falls to the run's, of training and of validation, in twelve rows."""
    end = row.test_loss if pd.notna(row.test_loss) else 3.3
    rate = 0.35 if row.preset in ("kda", "transformer") else 0.6  # the slow ones are still falling at the end
    found = []
    for place in range(1, 13):
        step = row.steps * place // 12
        loss = end + 3 * math.exp(-rate * place)
        about = {"experiment": row.experiment, "run": row.run, "name": row.name, "label": row.label}
        about |= {"seed": row.seed, "step": step, "tokens": step * row.tokens_per_step}
        train = {"split": "train", "loss": loss + 0.05, "grad_norm": 2.0 / place + 0.1, "lr": row.lr}
        found.append({**about, **train, "seconds": row.seconds * place / 12, "tokens_per_second": 7000.0})
        if place % 2 == 0:
            found.append({**about, "split": "validation", "loss": loss})
    return pd.DataFrame(found).astype({"step": "Int64", "tokens": "Int64"})


def _table(name: str, runs: pd.DataFrame, rows: dict[str, list[tuple]] | None) -> pd.DataFrame:
    """A table of SPLIT_TABLES from run -> rows, each in the order of its columns."""
    types = SPLIT_TABLES[name].types
    found = [(run, *row) for run, own in (rows or {}).items() for row in own]
    frame = pd.DataFrame(found, columns=["run", *types])
    keys = runs[["experiment", "run", "name", "label", "seed"]]
    merged = keys.merge(frame, on="run").astype(types)
    return merged[[*keys.columns, *types]]

"""job=import: a published model in Hugging Face's layout becomes a run, which every job that reads runs takes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

import zoo
from experiments.configuration.schema import Config
from experiments.costs.model_costs import derive_costs
from experiments.data.cache import content_hash
from experiments.jobs import Job
from experiments.planning.identity import IDENTITY_FORMAT, block_files
from experiments.runs import METRICS, MetricLog, RunFolder
from experiments.system import paths
from experiments.training.summary import describe
from zoo.errors import UserError
from zoo.model import meta_model
from zoo.pretrained import Published

LONGEST = 2048
"""Tokens of a run's windows where the command gives no data.seq_len: published lengths are for decoding."""


def run(config: Config) -> None:
    """Load the folder at from=, write RESULTS/NAME/HASH, and say where it is. One imported before is left as it is.

    Raises UserError for a folder that cannot be loaded, before anything is written.
    """
    if config.source is None:
        raise UserError("job=import needs from=FOLDER, a folder with config.json and *.safetensors")
    paths.check_writable(config.results, "results")
    published = Published.open(config.source)
    tokenizer = published.tokenizer()
    if tokenizer is None:
        raise UserError(
            f"{config.source} has no tokenizer.json, which is needed to read and write text; add the model's "
            "(in Python zoo.from_pretrained needs none)"
        )
    if tokenizer.vocab_size > published.vocab_size:
        raise UserError(
            f"the tokenizer in {config.source} has {tokenizer.vocab_size:,} tokens and its model knows "
            f"{published.vocab_size:,}; use the model's own tokenizer"
        )
    length = config.data.seq_len if "data.seq_len" in config.given else min(published.seq_len, LONGEST)
    digest = published.digest()
    identity = {"format": IDENTITY_FORMAT, "published": digest, "data": {"seq_len": length}}
    folder = RunFolder(Path(config.results) / config.name / content_hash(identity, 12))
    if not folder.complete:
        began = time.perf_counter()
        model = published.load(seq_len=length)
        config = _as_loaded(config, published, folder, length)
        with folder.locked():
            folder.begin(
                OmegaConf.to_yaml(OmegaConf.structured(config)), identity, block_files(model.architecture)
            )
            MetricLog(folder.path / METRICS, []).cut(0)
            zoo.export(model, folder.path, tokenizer=tokenizer.to_json())
            seconds = time.perf_counter() - began
            folder.finish(_summary(config, published, folder, tokenizer, digest, seconds))
    summary = folder.summary()
    print(
        f"{summary['name']}: {summary['parameters']:,} parameters, {summary['data']['tokenizer']} tokenizer of "
        f"{tokenizer.vocab_size:,}; windows of {length:,} tokens (data.seq_len; published for {published.seq_len:,})"
    )
    print(f"run: {folder.path}")


def _as_loaded(config: Config, published: Published, folder: RunFolder, length: int) -> Config:
    """The configuration that the run records: its model, and the text to probe it on in its own tokens."""
    text = dataclasses.replace(
        config.data, tokenizer="pretrained", tokenizer_path=str(folder.path), seq_len=length
    )
    return dataclasses.replace(config, model=published.config, data=text)


def _summary(
    config: Config,
    published: Published,
    folder: RunFolder,
    tokenizer: zoo.tokenization.Tokenizer,
    digest: str,
    seconds: float,
) -> dict[str, Any]:
    """The summary of a run that was trained elsewhere: nothing of its training is known but the weights."""
    length, resolved = config.data.seq_len, published.folder.resolve()
    model = meta_model(config.model, vocab_size=published.vocab_size, seq_len=length)
    description = describe(config, model, derive_costs(model, length), folder, torch.device("cpu"))
    return {
        **description,
        "name": resolved.name,
        "source": {"folder": str(resolved), "sha256": digest, "family": published.family.model_type},
        "model": {**description["model"], "preset": published.family.model_type},
        "data": {
            "name": "published",
            "train": "unknown: published weights",
            "validation": "none",
            "test": "none",
            "tokenizer": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
            "seq_len": length,
            "pack": config.data.pack,
            "fingerprint": digest[:32],
        },
        "metrics": {},
        "stopped": "imported",
        "seconds": round(seconds, 3),
    }


JOB = Job(
    "import",
    "make a run of a published model in Hugging Face's layout (config.json, *.safetensors, tokenizer.json)",
    run,
    needs="from=FOLDER name=NAME",
)

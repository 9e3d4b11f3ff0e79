"""Configurations of the stages of job=gpu: the reference models by the reference recipe, or a small rehearsal."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from experiments.configuration.schema import BenchConfig, Config, OptimConfig, TrainerConfig
from experiments.data import DataConfig
from experiments.parallel.group import pick_device
from experiments.system import machine
from zoo import ModelConfig
from zoo.errors import UserError
from zoo.files import write_json

# A record of finished work, in a file, so that the next attempt skips it.


class Record:
    """Names of finished pieces of work, each with a note. Raises UserError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Any] = _read(path)

    def __contains__(self, name: str) -> bool:
        return name in self.done

    def add(self, name: str, note: Any) -> None:
        """Add a finished piece of work, and write the file."""
        self.done[name] = note
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.done)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it to repeat what it lists") from error


PATTERNS = {"dense": ("transformer", "F"), "sf": ("hypergraph", "interlaced_sf")}
RESUMED = ("kernels", "models")
# A rehearsal measures a few of their cases.
REHEARSED: dict[str, dict[str, Any]] = {
    "kernels": {"cases": ["short_conv", "hyper_pre"], "tokens": 16},
    "models": {"cases": ["transformer", "hypergraph"], "tokens": 16},
}
WORKERS = 16
"""Processes that compile at once, at most: each holds half a GB of the GPU's memory beside its tensors."""
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of all stages.

    rehearse: small and on any machine; seconds: time one stage may take; inputs: folder with offline data.
    """

    config: Config
    rehearse: bool
    seconds: float
    inputs: Path

    @staticmethod
    def of(config: Config) -> Settings:
        """The settings that the node `gpu` of a configuration asks for."""
        inputs = Path(os.path.expanduser(config.gpu.inputs))
        return Settings(config, config.gpu.rehearse, 60 * config.gpu.minutes, inputs)

    @property
    def target(self) -> str | None:
        """The GPU to compile for on this machine, which has none; None: that of this machine."""
        return self.config.gpu.target

    @property
    def folder(self) -> Path:
        """The folder of runs, checkpoints and the list of finished stages."""
        return Path(self.config.results) / ("gpu-rehearsal" if self.rehearse else "gpu")

    @property
    def published(self) -> Path:
        """The folder of tables that are to be committed; a rehearsal commits nothing."""
        return self.folder / "published" if self.rehearse else Path(self.config.results) / "published"

    @property
    def workers(self) -> int:
        """Processes at once, in stages that compile: most of their time no process waits for the GPU."""
        return 1 if self.rehearse else min(WORKERS, os.cpu_count() or 1)

    @property
    def device_name(self) -> str:
        """The GPU's name; in a rehearsal without one the processor's."""
        if self.target:
            return f"this machine, for an {self.target}"
        where = machine.describe(pick_device(self.config.device))
        return where["gpu"] or f"{where['host_cpu']} (rehearsal)"

    def bench(self, suite: str) -> Config:
        """The configuration of a bench suite: reference width; resumable suites at all lengths."""
        bench = BenchConfig(
            lengths=None if suite in RESUMED else LENGTHS,
            repeats=10,
            budget_s=0.7 * self.seconds,
            out=str(self.published),
        )
        if self.rehearse:
            lengths = [16] if suite in RESUMED else [64, 128]
            bench = dataclasses.replace(bench, lengths=lengths, repeats=3, **REHEARSED.get(suite, {}))
        config = dataclasses.replace(
            self.config, job="bench", suite=suite, model=self._model("F"), bench=bench
        )
        return dataclasses.replace(config, data=self._data()) if suite == "models" else config

    def training(self, name: str, seconds: float) -> Config:
        """The configuration that trains PATTERNS[name]: +experiment=wikitext103, or a rehearsal of it."""
        preset, pattern = PATTERNS[name]
        steps = 20 if self.rehearse else 50_000
        every = 10 if self.rehearse else 500
        trainer = TrainerConfig(
            max_steps=steps,
            val_every=every,
            checkpoint_every=every,
            val_tokens=1024 if self.rehearse else None,
            patience=5,
            log_every=min(50, every),
            max_minutes=seconds / 60,
            # The Gumbel noise and sorting are many small kernels; compiling fuses them where a GPU waits for them.
            compile=False,
            threads=self.config.trainer.threads,
            progress=self.config.trainer.progress,
        )
        return dataclasses.replace(
            self.config,
            job="train",
            name="wikitext103" if not self.rehearse else "rehearsal",
            results=str(self.folder),
            model=dataclasses.replace(self._model(pattern), preset=preset),
            data=self._data(),
            optim=OptimConfig(lr=3e-4, lr_min=3e-5, warmup_steps=2000, weight_decay=0.1, clip=1.0),
            trainer=trainer,
        )

    def _model(self, pattern: str) -> ModelConfig:
        sizes: dict[str, Any] = {"d_model": 768, "n_heads": 12, "depth": 14}
        if self.rehearse:
            sizes = {"d_model": 16, "n_heads": 2, "depth": 2}
        return dataclasses.replace(self.config.model, pattern=pattern, **sizes)

    def _data(self) -> DataConfig:
        if self.rehearse:
            return dataclasses.replace(self.config.data, seq_len=32, batch_size=4)
        train = sorted(self.inputs.glob("*train*.parquet"))
        local = self.inputs / "wikitext-103-raw-v1"
        gpt2 = self.inputs / "gpt2"
        return DataConfig(
            name="wikitext103",
            path=str(local) if local.is_dir() else None,
            train_path=str(self.inputs / "*train*.parquet") if train else None,
            tokenizer="gpt2",
            gpt2_path=str(gpt2) if gpt2.is_dir() else None,
            seq_len=512,
            batch_size=16,
            cache_dir=self.config.data.cache_dir,
        )

"""Lightning's trainer on this process's device, with everything off that our own callbacks do."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "false"
)  # read when Lightning forks; tokenising is done by then

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment

from experiments.configuration.schema import Config
from experiments.parallel import group
from experiments.system import machine
from experiments.training import callbacks


def make_trainer(
    config: Config, device: torch.device, actions: list[pl.Callback], folder: Path, loggers: Any = False
) -> pl.Trainer:
    """The trainer of a configuration, with `actions` in place of Lightning's own validation and checkpoints.

    Lightning sees one device: processes are started by torchrun, and models arrive wrapped (experiments.parallel), so
    that it starts none again with the raw command line.
    """
    half = machine.precision(config.trainer.precision, device) == "bf16"
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed" if half else "32-true",
        max_steps=config.trainer.max_steps,
        accumulate_grad_batches=group.share(config.trainer.accumulate),
        callbacks=[callbacks.OwnSignals(), *actions],
        # Not the environment that Lightning finds: under Slurm it would requeue the job, which the engine does.
        plugins=[callbacks.AtomicCheckpointIO(), LightningEnvironment()],
        logger=loggers,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )


def make_loggers(config: Config, folder: Path) -> Any:
    """Lightning's loggers that trainer.loggers names, writing into the run folder; False for none.

    Of several processes the main one logs.
    """
    if not group.is_main():
        return False
    loggers: list[Any] = []
    if "tensorboard" in config.trainer.loggers:
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(str(folder), name="tensorboard", version=""))
    if "wandb" in config.trainer.loggers:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(
            WandbLogger(project="archzoo", group=config.name, name=folder.name, save_dir=str(folder))
        )
    return loggers or False


def silence_lightning() -> None:
    """Switch off Lightning's tips and PyTorch's scheduler warning, which would interrupt our progress bar."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")

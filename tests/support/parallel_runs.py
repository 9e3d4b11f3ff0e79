"""Small trainings that one process and several do; run by torchrun as a module, it does many, one after the other."""

import dataclasses
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from experiments.configuration.compose import architectures, presets_to_compare
from experiments.configuration.schema import Config
from experiments.data.tasks_base import IGNORE
from experiments.parallel import group
from experiments.parallel.strategies import whole_state
from experiments.system.signals import Paused
from experiments.system.torchrun import leave
from experiments.training.callbacks import Pause, save_checkpoint
from experiments.training.lightning_modules import LanguageModelling, NonFinite
from experiments.training.train import make_trainer, silence_lightning, spread
from zoo import LanguageModel, ModelConfig, registry
from zoo.recompute import Recompute

ROOT = Path(__file__).resolve().parents[2]
VOCAB, LENGTH, STEPS = 51, 24, 12  # a vocabulary that two does not divide
CPU = torch.device("cpu")
LIKE = ModelConfig(d_model=32, n_heads=2, depth=4)


class RandomBatches:
    """Batch i, of so many rows, depends on i only.

    unequal: batches differ in their numbers of answers and of sequences, which are packed.
    """

    def __init__(self, rows: int = 2, unequal: bool = False) -> None:
        self.rows, self.unequal = rows, unequal

    def batch(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCAB, (self.rows, LENGTH), generator=generator)
        keys = torch.arange(self.rows) + self.rows * index
        found = {"tokens": tokens, "targets": tokens.roll(-1, 1), "noise_keys": keys}
        return self._unequal(found, index) if self.unequal else found

    def _unequal(self, batch: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
        tokens, targets = (batch[name].flatten()[None] for name in ("tokens", "targets"))
        targets[:, : 11 * (1 + index % 5)] = IGNORE  # in every fifth none is left
        ends = torch.tensor([0, *range(3 + index % 4, LENGTH, 3 + 2 * (index % 4)), tokens.shape[1]])
        return {
            "tokens": tokens,
            "targets": targets,
            "cu_seqlens": ends.to(torch.int32),
            "noise_keys": torch.arange(len(ends) - 1) + 100 * index,
        }


def models() -> dict[str, ModelConfig]:
    """The eleven, every residual scheme, the mixture of experts and an embedding that is not the head."""
    found = {name: architectures(LIKE)[name] for name in presets_to_compare()}
    for scheme in registry.blocks("residual"):
        residual = dataclasses.replace(LIKE.residual, name=scheme)
        found[f"residual-{scheme}"] = dataclasses.replace(LIKE, depth=2, residual=residual)
    channel = dataclasses.replace(LIKE.channel, name="moe")
    found["moe"] = dataclasses.replace(LIKE, depth=2, channel=channel)
    found["untied"] = dataclasses.replace(LIKE, depth=2, tie_embeddings=not LIKE.tie_embeddings)
    return found


def configured(model: ModelConfig, **trainer) -> Config:
    """The recipe of a case: `trainer` are its options beside twelve steps of two micro-batches."""
    config = Config(model=model)
    config.data.seq_len = LENGTH
    config.optim.warmup_steps = 5
    config.trainer = dataclasses.replace(config.trainer, **{"max_steps": STEPS, "accumulate": 2, **trainer})
    return config


def train(
    config: Config,
    folder: Path,
    *,
    start: str | None = None,
    end: str | None = None,
    bad: int | None = None,
    rows: int = 2,
    unequal: bool = False,
    collect: bool = False,
) -> dict:
    """Losses of all micro-batches, the gradient norm of all steps, and the whole weights at the end.

    start: a checkpoint to go on from; end: a folder for one of the end; bad: a micro-batch whose loss is not a number;
    then the error and its step are returned; rows, unequal: of `RandomBatches`;
    collect: free what only Python's garbage collector frees before every step.
    """
    silence_lightning()
    torch.set_num_threads(1)
    model = LanguageModel(config.model, vocab_size=VOCAB, seq_len=LENGTH, seed=3)
    model.recompute = Recompute(config.trainer.recompute, config.trainer.recompute_block)
    if bad is not None:
        poison(model, RandomBatches().batch(bad)["tokens"])
    task = LanguageModelling(model, config, RandomBatches(rows, unequal), {}, spread(model, config, CPU))
    losses, norms = [], []
    after = task.on_before_optimizer_step

    def seen(optimizer: torch.optim.Optimizer) -> None:
        after(optimizer)
        losses.extend(float(x["loss"]) for x in task.micro_batches)
        norms.append(float(task.last_step["grad_norm"]))
        if collect:
            gc.collect()

    task.on_before_optimizer_step = seen
    at = config.trainer.pause_at
    trainer = make_trainer(config, CPU, [] if at is None else [Pause(None, at, Path(end))], folder)
    try:
        trainer.fit(task, ckpt_path=start, weights_only=True)
    except NonFinite as error:
        return {"error": str(error), "step": error.step}
    except Paused:
        return {}
    if end is not None:
        save_checkpoint(trainer, Path(end))
    return {"losses": losses, "norms": norms, "weights": whole_state(model)}


def poison(model: LanguageModel, tokens: torch.Tensor) -> None:
    """Let the first layer give NaN for this batch."""
    met = []
    model.register_forward_pre_hook(lambda _, given: met.append(torch.equal(given[0], tokens)))
    model.layers[0].register_forward_hook(
        lambda _, __, out: (out[0] * torch.nan, out[1]) if met[-1] else None
    )


def in_processes(cases: dict[str, dict], folder: Path, processes: int = 2, timeout: float = 600) -> dict:
    """Case -> what `train` gave in several processes; cases: name -> model's name and options of the trainer."""
    torch.save(cases, folder / "cases.pt")
    torchrun("support.parallel_runs", str(folder), processes=processes, timeout=timeout)
    return torch.load(folder / "found.pt", weights_only=True)


def torchrun(module: str, *arguments: str, processes: int = 2, timeout: float = 600) -> None:
    """Run a module of `support` in several processes, and wait for them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [*command, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def main(folder: Path) -> None:
    """Train all cases of the folder, one after the other."""
    cases, known = torch.load(folder / "cases.pt", weights_only=True), models()
    with group.joined(CPU):
        found = {}
        for name, case in cases.items():
            also = {key: case.pop(key) for key in ("start", "end", "bad", "unequal") if key in case}
            config = configured(known[case.pop("model")], **case)
            with tempfile.TemporaryDirectory() as place:
                found[name] = train(config, Path(place), **also)
        if group.is_main():
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()

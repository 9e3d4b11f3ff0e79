"""suite=recompute: a training step of the configured model under trainer.recompute=none, full and selective.

kept_bytes is what the forward pass leaves for the backward, counted by storage; peak_memory_bytes, on a GPU, the most
that a whole step takes. ratio: the time without recomputing over this one's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from experiments import machine
from experiments.bench import tables, timing
from experiments.bench.kept import kept_bytes
from experiments.bench.stepping import LATE, Step, tokens_of
from experiments.plan import label, nominal_vocabulary
from experiments.schema import Config
from zoo.model import LanguageModel, letters_of
from zoo.modules.step_buffer import set_step
from zoo.recompute import MODES


def run(config: Config) -> list[dict[str, Any]]:
    """A row a mode, timed in turns, at data.batch_size x data.seq_len."""
    device, d = machine.pick(config.device), config.data
    model = LanguageModel(config.model, vocab_size=nominal_vocabulary(config), seq_len=d.seq_len).to(device)
    set_step(model, LATE)
    step = Step(config, model, tokens_of(config, d.batch_size, d.seq_len, device))
    times = timing.interleaved({mode: _under(mode, step) for mode in MODES}, config.bench.repeats, device)
    plain = timing.summary(times["none"])["milliseconds_median"]
    name, rows = label(config, letters_of(config.model)), []
    for mode in MODES:
        row = tables.row("recompute", name, times[mode], plain, device, tokens=d.seq_len)
        row |= {
            "batch": d.batch_size,
            "backend": config.model.backend,
            "mode": "training step",
            "recompute": mode,
        }
        row["peak_memory_bytes"] = timing.peak_memory(_under(mode, step), device)
        step.recompute(mode)
        row["kept_bytes"] = kept_bytes(step.loss)
        tqdm.write(f"{tables.line(row)}  {mode}: {row['kept_bytes'] / 2**20:.1f} MiB kept")
        rows.append(row)
    return rows


def _under(mode: str, step: Step) -> Callable[[], None]:
    def call() -> None:
        step.recompute(mode)
        step()

    return call

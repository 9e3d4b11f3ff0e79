"""suite=recompute: a training step of the configured model under trainer.recompute=none, full and selective.

kept_bytes is the memory that the forward pass saves for the backward, counted by storage; peak_memory_bytes, on a GPU,
the peak of a whole step. ratio: the time without recomputing over this one's.
"""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.memory_traffic import saved_bytes
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.configuration.compose import label
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device
from zoo.config import architecture_of
from zoo.recompute import MODES


def run(config: Config) -> list[dict[str, Any]]:
    """A row a mode, interleaved, at data.batch_size x data.seq_len."""
    device, d = pick_device(config.device), config.data
    model = make_model(config, config.model, d.seq_len, device)
    step = TrainingStep(config, model, random_tokens(config, d.batch_size, d.seq_len, device))
    times = timing.interleaved({mode: step.recomputing(mode) for mode in MODES}, config.bench.repeats, device)
    plain = timing.summary(times["none"])["milliseconds_median"]
    name, rows = label(config, architecture_of(config.model)), []
    for mode in MODES:
        row = result_table.row("recompute", name, times[mode], plain, device, tokens=d.seq_len)
        row |= {
            "batch": d.batch_size,
            "backend": config.model.backend,
            "mode": "training step",
            "recompute": mode,
        }
        row["peak_memory_bytes"] = timing.peak_memory(step.recomputing(mode), device)
        step.set_recompute(mode)
        row["kept_bytes"] = saved_bytes(step.loss)
        tqdm.write(f"{result_table.format_row(row)}  {mode}: {row['kept_bytes'] / 2**20:.1f} MiB saved")
        rows.append(row)
    return rows

"""A training step of every preset against the plain transformer's, with equally many parameters."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.bench.timing import CPU
from experiments.presets import architectures
from experiments.schema import Config
from zoo.matching import match_parameters


def run(config: Config) -> list[dict[str, Any]]:
    """Rows at the configured size and batch; ratio: the transformer's time over this architecture's."""
    d = config.data
    tokens = random_tokens(config, d.batch_size, d.seq_len, CPU)
    steps = {
        name: TrainingStep(
            config, make_model(config, match_parameters(preset, d.seq_len), d.seq_len, CPU), tokens
        )
        for name, preset in architectures(config.model).items()
    }
    with tqdm(total=1, desc="step", unit="round") as bar:
        times = timing.interleaved(steps, max(config.bench.repeats, 5), CPU)
        bar.update()
    plain = timing.summary(times["transformer"])["milliseconds_median"]
    rows = []
    for name, milliseconds in times.items():
        row = result_table.row("step", name, milliseconds, plain, CPU, tokens=d.seq_len)
        row |= {"batch": d.batch_size, "backend": "auto", "mode": "training step", "precision": "float32"}
        tqdm.write(result_table.format_row(row))
        rows.append(row)
    return rows

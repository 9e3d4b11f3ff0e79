"""A training step of every preset against the plain transformer's, with equally many parameters."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.suites.steps import PLAIN, matched_steps
from experiments.bench.timing import CPU
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config


def run(config: Config) -> list[dict[str, Any]]:
    """Rows at the configured size and batch; ratio: the transformer's time over this architecture's."""
    d = config.data
    steps = matched_steps(config, list(architectures(config.model)), d.batch_size, CPU)
    with tqdm(total=1, desc="step", unit="round") as bar:
        times = timing.interleaved(steps, max(config.bench.repeats, 5), CPU)
        bar.update()
    plain = timing.summary(times[PLAIN])["milliseconds_median"]
    rows = []
    for name, milliseconds in times.items():
        row = result_table.row("step", name, milliseconds, plain, CPU, tokens=d.seq_len)
        row |= {"batch": d.batch_size, "backend": "auto", "mode": "training step", "precision": "float32"}
        tqdm.write(result_table.format_row(row))
        rows.append(row)
    return rows

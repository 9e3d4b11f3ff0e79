"""suite=mixers: every mixer alone against full attention, forward and backward, on a CPU.

One sequence of each of bench.lengths, at the configured width and heads, past warm-ups, auxiliary losses included; all
in turns, in one process. ratio: full attention's time over this one's, the median of the pairs, with its 95 % interval
in ratio_low and ratio_high.
"""

from __future__ import annotations

import functools
from typing import Any

from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.suites import cpu
from experiments.bench.timing import CPU
from experiments.configuration.schema import Config
from zoo import registry
from zoo.errors import UserError

LENGTHS = [1024, 4096]
PLAIN = "attention"
SECONDS = 120.0
"""About the time that one length may take."""
COLUMNS = [*result_table.COLUMNS, "ratio_low", "ratio_high"]


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every mixer at every length, full attention always among them. Raises UserError for a GPU."""
    if config.device == "cuda":
        raise UserError("suite=mixers measures the CPU; for a GPU: suite=models")
    letters = {block.name: block.word for block in registry.blocks("mixer").values()}
    names = [PLAIN, *(name for name in matching_names(config.bench.cases, list(letters)) if name != PLAIN)]
    rows = []
    for length in config.bench.lengths or LENGTHS:
        rows += _rows(config, {name: letters[name] for name in names}, length)
    return rows


def _rows(config: Config, letters: dict[str, str], length: int) -> list[dict[str, Any]]:
    width, heads = config.model.d_model, config.model.n_heads
    with tqdm(total=1, desc=f"mixers at {length} tokens", unit="round") as bar:
        calls = {
            name: functools.partial(
                cpu.forward_backward,
                cpu.make_mixer(letter, length, width, heads),
                *cpu.inputs(length, width),
            )
            for name, letter in letters.items()
        }
        times = timing.interleaved_within(calls, config.bench.repeats, CPU, SECONDS)
        bar.update()
    rows = []
    for name, milliseconds in times.items():
        ratio, low, high = timing.ratios(times[PLAIN], milliseconds)
        row = result_table.row("mixers", name, milliseconds, 0.0, CPU, tokens=length)
        row |= {"backend": "auto", "mode": "forward+backward", "precision": "float32"}
        rows.append(row | {"ratio": ratio, "ratio_low": low, "ratio_high": high})
        tqdm.write(result_table.format_row(rows[-1]))
    return rows

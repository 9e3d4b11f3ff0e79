"""suite=inference: reading a prompt and decoding after it, of presets and of runs, against the length of the context.

    prefill   zoo.generate.prefill of so many tokens: the time to the first token (logits of the last one, and the
              decode state), and tokens a second
    decode    one more token for every sequence, after so many: milliseconds a step, the mean of a few in a row

Batches of 1 and 8 sequences; state_bytes is the decode state of all of them. Presets have the configured width, heads
and depth, and are configured for each length; bench.runs names trained models.

In each cell the alternatives are taken in turns, and a ratio is the other's time over this one's (above 1: faster),
the median of the pairs with its 95 % bootstrap interval, of three pairs and more:

    ratio              the same weights in transformers, where it has the architecture (column peer: Llama, Lfm2 or
                       DeepseekV3; both must give the same logits first); else the plain transformer
    ratio_transformer  the plain transformer of the same width, heads, depth and vocabulary
    ratio_forward      the model's own forward pass over the prompt as in training, with the logits of all tokens
    ratio_shortest     the model's own step after the shortest context of this run: 1 where length costs nothing

A model that runs out of memory, or would by its growth so far take too long, is a row that says so; what it is compared
with is then left out of the turns. Rows that stand in the table are not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.bench import result_table
from experiments.bench.budget import GPU_LENGTHS
from experiments.bench.suites.inference.inference_rows import COLUMNS
from experiments.bench.suites.inference.model_sources import timed_models
from experiments.bench.suites.inference.model_timing import MODES, ModelTiming
from experiments.bench.suites.inference.reference_models import Bench
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device

__all__ = ["COLUMNS", "finished", "run"]

CPU_LENGTHS = [256, 1024, 4096, 8192, 32_768]
LENGTHS = {"cpu": CPU_LENGTHS, "cuda": [*CPU_LENGTHS, GPU_LENGTHS[-1]]}
BATCHES = (1, 8)


def run(config: Config) -> list[dict[str, Any]]:
    """All rows of the table, those of earlier runs included."""
    table = _table(config)
    table.fill(_cells(config, table), config.bench.budget_s, "inference")
    return table.rows


def finished(config: Config) -> bool:
    """Return whether every cell has its row."""
    table = _table(config)
    return not table.unmeasured(_cells(config, table))


def _table(config: Config) -> result_table.ResumableTable:
    return result_table.ResumableTable(config, pick_device(config.device), COLUMNS)


def _cells(config: Config, table: result_table.ResumableTable) -> Iterator[result_table.Cell]:
    """Short contexts first: they say how long the longer ones would take."""
    device = pick_device(config.device)
    lengths = sorted({*(config.bench.lengths or LENGTHS[device.type])})
    bench = Bench(config, table, shortest=lengths[0])
    measured = timed_models(config, device)
    for length in lengths:
        for timed in measured:
            for mode in MODES:
                for batch in BATCHES:
                    yield ModelTiming(bench, timed, mode, length, batch).cell

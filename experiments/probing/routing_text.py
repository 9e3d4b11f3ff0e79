"""The text over which the choices of routers are counted: some windows of a split, or all of it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from experiments.configuration.schema import ProbeConfig
from experiments.data import Split
from experiments.probing.held_out import average_rows, evenly_spaced_windows, whole_split
from zoo.model import LanguageModel
from zoo.probes import Row, correct_averages, probe_model

DEFAULT_SPLIT = "validation"


def split_name(probe: ProbeConfig) -> str:
    """The split that is read, DEFAULT_SPLIT where none is asked for."""
    return probe.routing_split or DEFAULT_SPLIT


def batches(splits: Mapping[str, Split], probe: ProbeConfig, length: int) -> list[Tensor]:
    """Tokens int64 [N, T] of the split, probe.batch_size windows of the trained length at once.

    At least probe.routing_tokens in windows evenly spaced, or every token of the split where that is null.
    """
    split = splits[split_name(probe)]
    if probe.routing_tokens is None:
        parts = whole_split(split, length)
    else:
        parts = [evenly_spaced_windows(split, -(-probe.routing_tokens // length), length)[0]]
    return [batch for part in parts for batch in part.split(probe.batch_size)]


def routing_rows(model: LanguageModel, tokens: list[Tensor]) -> list[Row]:
    """Rows of the measure `routing` (loads, imbalance, certainty) over all batches as over one."""
    device = model.embedding.weight.device
    rows = (row for batch in tokens for row in probe_model(model, batch.to(device), names=("routing",)))
    return correct_averages(average_rows(rows))

"""What the measures of a run say is wrong with its model's own numbers: a sentence each."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

import zoo
from experiments.data import Corpus, TaskSet
from experiments.probing.held_out import average_rows, evenly_spaced_windows
from zoo.probes import Row, all_measures, probe_model

SPLIT, WINDOWS = "validation", 4


def of_probed(run: Path) -> list[str]:
    """Sentences from a run's table of measures; none without the table."""
    from experiments.probing.probe_run import read  # needs pyarrow

    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = [Row(*values[1:-1]) for values in read(run, "measures")]  # without step and split
        return [line for cls in all_measures().values() for line in cls.notices(rows)]
    return []


def of_trained(run: Path, mixers: set[str], corpus: Corpus | TaskSet, device: torch.device) -> list[str]:
    """Sentences about a run's best weights on a few held-out sequences; `mixers`: names of those in the model.

    A model none of whose mixers a measure warns of is not run.
    """
    watching = {name: cls for name, cls in all_measures().items() if cls.warns_of in mixers}
    if not watching:
        return []
    model = zoo.load(run, device)
    if isinstance(corpus, TaskSet):
        sequences = corpus.held_out(SPLIT).first(WINDOWS)
        tokens, targets = torch.from_numpy(sequences.tokens), torch.from_numpy(sequences.targets)
    else:
        tokens, targets = evenly_spaced_windows(corpus.splits[SPLIT], WINDOWS, model.seq_len)
    rows = average_rows(
        row
        for x, y in zip(tokens.split(1), targets.split(1), strict=True)
        for row in probe_model(model, x.to(device), y.to(device), watching)
    )
    return [line for cls in watching.values() for line in cls.notices(rows)]

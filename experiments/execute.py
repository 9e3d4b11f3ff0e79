"""Bringing a planned run to completion, in this process: training it, and scoring splits that it was not scored on."""

from __future__ import annotations

import errno

from experiments import interrupts
from experiments.plan import Plan
from experiments.progress import Sink
from experiments.runs import FAILURE, RunFailed, RunPaused
from zoo.errors import UserError


def execute(planned: Plan, sink: Sink, workers: int = 1) -> bool:
    """Train a run, from its last checkpoint on, until it is complete; returns whether there was anything to do.

    A complete run is scored on those of evaluate.splits that its summary does not have.
    workers: cells of one sweep that train at the same time, this one included.
    A failure is recorded in the run folder and raised as RunFailed; a pause is raised as RunPaused and not recorded.
    """
    folder = planned.folder
    if planned.done:
        return False
    with folder.locked():
        if planned.done:  # another process finished it while this one waited
            return False
        with interrupts.exiting():
            from experiments.callbacks import Paused, remove_checkpoints
            from experiments.training import score_more, train

        try:
            if folder.complete:
                folder.finish(score_more(planned, sink))
                return True
            folder.begin(planned.yaml(), planned.identity)
            folder.finish(train(planned, sink, workers))
            if not planned.config.trainer.keep_checkpoints:
                remove_checkpoints(folder.checkpoints)
        except Paused as pause:
            raise RunPaused(f"{planned.title}: {pause}") from pause
        except UserError:
            raise
        except Exception as error:
            folder.fail(error)
            raise _explain(planned, error) from error
    return True


def _explain(planned: Plan, error: Exception) -> RunFailed:
    """The failure in one line, with the remedy for a full disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(
            f"{planned.title}: the disk is full ({error}). Earlier files are intact: "
            "free some space and give the same command again; it goes on from the last checkpoint"
        )
    record = f" (see {planned.folder.path / FAILURE})" if planned.folder.failed else ""
    return RunFailed(f"{planned.title}: {type(error).__name__}: {error}{record}")

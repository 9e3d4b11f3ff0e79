"""Bringing a planned run to completion, in this process: training it, and scoring splits that it was not scored on."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from experiments.parallel import group
from experiments.planning.plan import Plan, block_files
from experiments.runs.folders import FAILURE, RunFailed, RunPaused
from experiments.system import interrupts
from experiments.system.preemption import Paused
from experiments.system.progress import Sink
from experiments.training import launch
from zoo.errors import UserError


def execute(planned: Plan, sink: Sink, workers: int = 1) -> bool:
    """Train a run, from its last checkpoint on, until it is complete; returns whether there was anything to do.

    A complete run is scored on those of evaluate.splits that its summary does not have.
    workers: cells of one sweep that train at the same time, this one included.
    A failure is recorded in the run folder and raised as RunFailed; a pause is raised as RunPaused and not recorded.
    A run of several devices trains in processes of its own (`launch`), each of which takes part (`take_part`).
    """
    if planned.done:
        return False
    with _pausing(planned):
        if planned.config.trainer.processes > 1 and not planned.folder.complete:
            launch.launch(planned, sink, workers)
            return True
        with planned.folder.locked():
            if planned.done:  # another process finished it while this one waited
                return False
            try:
                _go_on(planned, sink, workers)
            except (Paused, RunPaused, UserError):
                raise
            except Exception as error:
                planned.folder.fail(error)
                raise _explain(planned, error) from error
    return True


def take_part(planned: Plan, sink: Sink, workers: int) -> None:
    """`execute` in one of several processes, which all have to call it: the main one locks, writes and scores.

    Raises what happened, which whoever started the processes records; a pause as RunPaused.
    """
    with _pausing(planned), _locked_by_main(planned):
        if not group.from_main(planned.done):
            _go_on(planned, sink, workers)
    group.barrier()  # the summary is there when any of them ends


@contextlib.contextmanager
def _pausing(planned: Plan) -> Iterator[None]:
    """While inside, a pause becomes RunPaused with the run's name."""
    try:
        yield
    except Paused as pause:
        raise RunPaused(f"{planned.title}: {pause}") from pause


@contextlib.contextmanager
def _locked_by_main(planned: Plan) -> Iterator[None]:
    """While inside, the main process holds the run. Where it is told to make room instead, all raise Paused together.

    One that stopped alone would leave the others with an error of the network.
    """
    with contextlib.ExitStack() as held:
        told = None
        if group.is_main():
            try:
                held.enter_context(planned.folder.locked())
            except Paused as pause:
                told = str(pause)
        if told := group.from_main(told):
            raise Paused(told)
        yield


def _go_on(planned: Plan, sink: Sink, workers: int) -> None:
    """Train a run to its end, or score a complete one on what is missing. Raises Paused."""
    with interrupts.loading():
        from experiments.training.callbacks import remove_checkpoints
        from experiments.training.train import score_more, train

    folder = planned.folder
    if group.from_main(folder.complete):
        if group.is_main():
            folder.finish(score_more(planned, sink))
        return
    if group.is_main():
        folder.begin(planned.yaml(), planned.identity, block_files(planned.config.model, planned.letters))
    summary = train(planned, sink, workers)
    if group.is_main():
        folder.finish(summary)
        if not planned.config.trainer.keep_checkpoints:
            remove_checkpoints(folder.checkpoints)


def _explain(planned: Plan, error: Exception) -> RunFailed:
    """The failure in one line, with the remedy for a full disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(
            f"{planned.title}: the disk is full ({error}). Earlier files are intact: "
            "free some space and give the same command again; it goes on from the last checkpoint"
        )
    record = f" (see {planned.folder.path / FAILURE})" if planned.folder.failed else ""
    return RunFailed(f"{planned.title}: {type(error).__name__}: {error}{record}")

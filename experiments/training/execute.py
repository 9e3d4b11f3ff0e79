"""Bringing a planned run to completion, in this process or in several: training, and scores that it lacks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from experiments import data
from experiments.configuration.schema import Config
from experiments.costs import peak_flops
from experiments.data.cache import cache_root
from experiments.parallel import group
from experiments.parallel.group import check_devices
from experiments.planning.identity import block_files
from experiments.planning.plan import Plan, from_record, to_record
from experiments.runs import FAILURE, RunFailed, RunPaused, refuse_link
from experiments.system import machine, processes, signals
from experiments.system.paths import python_path
from experiments.system.processes import Sink
from experiments.system.signals import Paused
from experiments.system.torchrun import END, as_parent
from zoo.errors import UserError

# Several processes: torchrun, a process of its own, starts one for each device with experiments.training.rank, which
# trains the run as one process would (`execute`). The main one holds the run's lock. They send progress and outcome
# (experiments.system.processes); their standard error goes to processes.log in the run's folder.

RENDEZVOUS = "ARCHZOO_RENDEZVOUS"
"""The environment variable with the address, HOST:PORT, at which the nodes of a run meet."""

LOG = "processes.log"


def launch(planned: Plan, sink: Sink, workers: int) -> None:
    """Train a run in its processes on this node, and wait for them.

    Raises RunFailed with what the first process said that failed, which is recorded; RunPaused; UserError.
    """
    config, folder = planned.config, planned.folder
    device = check_devices(config.device, config.trainer.devices)
    meeting = _meeting(config, planned.run)
    prepare(config, device)
    for place in (folder.path, folder.path / LOG):
        refuse_link(place)
    folder.path.mkdir(parents=True, exist_ok=True)
    with _plan_file(planned, workers) as file, open(folder.path / LOG, "w") as log:
        torchrun = subprocess.Popen(
            ranks_command(file, config, meeting),
            env=_environment(config),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which ends the others
        )
        try:
            outcome = _listen(torchrun, sink, file.parent)
            status = torchrun.wait()
        finally:
            if torchrun.poll() is None:
                torchrun.send_signal(END)
                torchrun.wait()
    _conclude(planned, outcome, status)


def prepare(config: Config, device: torch.device | None) -> None:
    """Make what processes share, so that they do not wait for each other: the data, and the peak that MFU refers to.

    The peak of a CPU is measured, while nothing else computes. device: which they train on; None: of another machine.
    """
    data.prepare(config.data, config.trainer.progress)
    if device is not None and device.type == "cpu":
        torch.set_num_threads(config.trainer.threads)
        peak_flops.peak(device, cache_root(config.data))


def _listen(torchrun: subprocess.Popen[str], sink: Sink, folder: Path) -> dict[str, Any] | None:
    """Return the first outcome that a process reports, once all have ended; progress goes to the sink.

    Where this process is told to make room, it passes that on to them (`signals`). folder: where records of
    failures stand, as in `processes.parse`.
    """
    outcome: dict[str, Any] | None = None
    with signals.passing_on():
        for message in processes.parse(torchrun.stdout or (), folder):
            if "process" in message:
                signals.pass_on_to(message["process"])
            elif "progress" in message:
                sink(*message["progress"])
            else:
                outcome = outcome or message
    return outcome


def ranks_command(file: Path, config: Config, meeting: list[str]) -> list[str]:
    """The command that trains a planned run (its file) in trainer.devices processes on this node.

    meeting: torchrun's options by which the nodes of the run find each other.
    """
    torchrun = [
        sys.executable,
        "-m",
        "experiments.system.torchrun",
        *meeting,
        f"--signals-to-handle={END.name}",
    ]
    return [
        *torchrun,
        f"--nproc-per-node={config.trainer.devices}",
        "-m",
        "experiments.training.rank",
        str(file),
    ]


def _meeting(config: Config, run: str) -> list[str]:
    """torchrun's options for one node or several. Raises UserError where nothing says where several meet."""
    nodes, address = config.trainer.nodes, os.environ.get(RENDEZVOUS)
    if nodes == 1:
        return ["--standalone"]
    if address is None:
        raise UserError(
            f"trainer.nodes={nodes}: run this command on every node, with {RENDEZVOUS}=HOST:PORT of one of them"
        )
    return [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={address}", f"--rdzv-id={run}"]


def _environment(config: Config) -> dict[str, str]:
    """The environment of the processes, in which this source tree can be imported from any working folder."""
    threads = str(config.trainer.threads)
    return {**os.environ, **as_parent(), "PYTHONPATH": python_path(), "OMP_NUM_THREADS": threads}


@contextmanager
def _plan_file(planned: Plan, workers: int) -> Iterator[Path]:
    """A file with all that a process needs to know, while inside."""
    folder = str(planned.folder.path.absolute())
    values = {"plan": to_record(planned), "folder": folder, "workers": workers, "argv": sys.argv}
    with tempfile.TemporaryDirectory(prefix="archzoo-") as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        yield file


def read_plan(file: Path) -> tuple[Plan, int]:
    """The plan in a file that `launch` wrote, and the number of cells that train at the same time.

    The command line becomes that of whoever wrote it, which summaries record.
    """
    values = json.loads(file.read_text(encoding="utf-8"))
    sys.argv = values["argv"]
    return from_record(values["plan"], Path(values["folder"])), values["workers"]


def _conclude(planned: Plan, outcome: dict[str, Any] | None, status: int) -> None:
    """Raise what the processes told; where one was killed, or told nothing and failed, record that."""
    folder = planned.folder
    if status == 0 and outcome is None:
        return
    killed = _killed(folder.path / LOG)
    if outcome is None or (killed and outcome["outcome"] == "failed"):
        why = killed or f"they ended with status {status}"
        record = {
            "kind": "ProcessesEnded",
            "message": f"processes of the run: {why}; see {folder.path / LOG}",
        }
    elif outcome["outcome"] == "paused":
        raise RunPaused(outcome["message"])
    elif outcome["outcome"] == "refused":
        raise UserError(outcome["message"])
    else:
        record = outcome["record"]
    folder.record(record)
    raise RunFailed(f"{planned.title}: {record['kind']}: {record['message']} (see {folder.path / FAILURE})")


def _killed(log: Path) -> str | None:
    """The signal that killed a process, in torchrun's words; None where none did. torchrun's own are SIGTERM and END.

    The others then fail because it is gone, and may be the first to tell.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    match = re.search(r"Signal \d+ \((?!SIGTERM|SIGHUP)\w+\) received by PID \d+", text)
    return match and match[0]


# One process.


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
            launch(planned, sink, workers)
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
        message = None
        if group.is_main():
            try:
                held.enter_context(planned.folder.locked())
            except Paused as pause:
                message = str(pause)
        if message := group.from_main(message):
            raise Paused(message)
        yield


def _go_on(planned: Plan, sink: Sink, workers: int) -> None:
    """Train a run to its end, or score a complete one on what is missing. Raises Paused."""
    with signals.loading():
        from experiments.training.callbacks import remove_checkpoints
        from experiments.training.train import score_more, train

    folder = planned.folder
    if group.from_main(folder.complete):
        if group.is_main():
            folder.finish(score_more(planned, sink))
        return
    if group.is_main():
        folder.begin(planned.yaml(), planned.identity, block_files(planned.layers))
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
            "free some space and give the same command again; it resumes from the last checkpoint"
        )
    if isinstance(error, OSError) and isinstance(error.filename2 or error.filename, str):
        return RunFailed(f"{planned.title}: {machine.explain(error)}")
    record = f" (see {planned.folder.path / FAILURE})" if planned.folder.failed else ""
    return RunFailed(f"{planned.title}: {type(error).__name__}: {error}{record}")

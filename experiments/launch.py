"""Starting a run that takes several processes: torchrun as a process of its own, and what it tells on the way.

torchrun starts a process a device with experiments.cell, which trains the run as one process would (`execute`); the
main one holds the run's lock. They tell progress and outcome by lines on the standard output, and everything on the
standard error goes to processes.log in the run's folder.
"""

from __future__ import annotations

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

from omegaconf import OmegaConf

from experiments import data, machine, peak_flops
from experiments.data.cache import cache_root
from experiments.paths import ROOT
from experiments.plan import Plan
from experiments.progress import Sink
from experiments.runs import FAILURE, RunFailed, RunFolder, RunPaused
from experiments.schema import Config
from zoo.errors import UserError

MARK = "\x1e"
"""The first character of a line that is a message."""

RENDEZVOUS = "ARCHZOO_RENDEZVOUS"
"""The environment variable with the address, HOST:PORT, at which the nodes of a run meet."""

LOG = "processes.log"


def processes(config: Config) -> int:
    """The number of processes that train a run."""
    return config.trainer.devices * config.trainer.nodes


def launch(planned: Plan, sink: Sink, workers: int) -> None:
    """Train a run in its processes on this node, and wait for them.

    Raises RunFailed with what the first process said that failed, which is recorded; RunPaused; UserError.
    """
    config, folder = planned.config, planned.folder
    data.prepare(
        config.data, config.trainer.progress
    )  # here, so that the processes do not wait for each other
    if machine.pick(config.device).type == "cpu":  # here, while nothing else computes
        peak_flops.peak(machine.pick(config.device), cache_root(config.data))
    folder.path.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, Any] | None = None
    with _plan_file(planned, workers) as file, open(folder.path / LOG, "w") as log:
        torchrun = subprocess.Popen(
            cell_command(file, config, planned.run),
            env=_environment(config),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which ends the others
        )
        try:
            for line in torchrun.stdout or ():
                if not line.startswith(MARK):
                    print(line, end="", flush=True)
                elif "outcome" in (message := json.loads(line[1:])):
                    outcome = outcome or message
                else:
                    sink(*message["progress"])
            status = torchrun.wait()
        finally:
            if torchrun.poll() is None:
                torchrun.terminate()
                torchrun.wait()
    _conclude(planned, outcome, status)


def cell_command(file: Path, config: Config, run: str) -> list[str]:
    """The command that trains a planned run (its file) in trainer.devices processes on this node.

    Raises UserError where the run takes several nodes and nothing says where they meet.
    """
    t = config.trainer
    meeting = ["--standalone"]
    if t.nodes > 1:
        address = os.environ.get(RENDEZVOUS)
        if address is None:
            raise UserError(
                f"trainer.nodes={t.nodes}: give this command on every node, with {RENDEZVOUS}=HOST:PORT of one of them"
            )
        meeting = [
            f"--nnodes={t.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={address}",
            f"--rdzv-id={run}",
        ]
    torchrun = [sys.executable, "-m", "experiments.torchrun", *meeting, f"--nproc-per-node={t.devices}"]
    return [*torchrun, "-m", "experiments.cell", str(file)]


def _environment(config: Config) -> dict[str, str]:
    """The environment of the processes, in which this source tree can be imported from any working folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(config.trainer.threads)}


def tell(**message: Any) -> None:
    """Send a message from a process of a run to whoever started it."""
    print(f"{MARK}{json.dumps(message)}", flush=True)


@contextmanager
def _plan_file(planned: Plan, workers: int) -> Iterator[Path]:
    """A file with all that a process needs to know, while inside."""
    values = {
        "config": OmegaConf.to_container(OmegaConf.structured(planned.config)),
        "letters": planned.letters,
        "identity": planned.identity,
        "folder": str(planned.folder.path.absolute()),
        "workers": workers,
    }
    with tempfile.TemporaryDirectory(prefix="archzoo-") as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        yield file


def read_plan(file: Path) -> tuple[Plan, int]:
    """The plan in a file that `launch` wrote, and the number of cells that train at the same time."""
    from experiments.compose import to_config  # Hydra takes half a second, and every cell of a sweep comes by

    values = json.loads(file.read_text(encoding="utf-8"))
    config = to_config(OmegaConf.create(values["config"]))
    folder = RunFolder(Path(values["folder"]))
    return Plan(config, values["letters"], values["identity"], folder), values["workers"]


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
    """The signal that killed a process, in torchrun's words; None where none did. torchrun's own signal is SIGTERM.

    The others then fail because it is gone, and may be the first to tell.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"Signal \d+ \((?!SIGTERM)\w+\) received by PID \d+", text)
    return found and found[0]

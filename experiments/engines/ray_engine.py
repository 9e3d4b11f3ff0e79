"""`ray`: one task a cell, on the nodes of a Ray cluster that share the results folder and this code."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

from experiments.configuration.schema import RayConfig
from experiments.engines.engine import DONE, Engine, State, progress, record_path, write_record
from experiments.engines.preloaded_worker import Ended
from experiments.engines.supervisor import RUNNING, WAITING, Lease
from experiments.planning.plan import Plan
from experiments.system.paths import import_path
from zoo.errors import UserError

# Connecting to a cluster, and asking whether its nodes have what a cell takes.

NAMESPACE = "archzoo"


def connect(settings: RayConfig) -> Any:
    """The module `ray`, connected to the cluster of the settings. Raises UserError where either is not there."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.job_config import JobConfig
    except ImportError:
        raise UserError("sweep.engine=ray needs ray: pip install -e '.[ray]'") from None
    # Workers import this code from the same place as here; private, but the public way restarts them.
    job = JobConfig(_py_driver_sys_path=import_path())
    here = settings.address == "local"
    before = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place
    try:
        ray.init(
            address=settings.address,
            namespace=NAMESPACE,
            job_config=job,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({"include_dashboard": False} if here else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = str(error).partition(". ")[0]
        raise UserError(
            f"no Ray cluster at sweep.ray.address={settings.address} ({said}); start one "
            "(ray start --head), or give sweep.ray.address=local for one on this machine"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    return ray


def refuse_what_no_node_has(nodes: list[dict[str, Any]], settings: RayConfig) -> None:
    """Raise UserError where a cell would wait for ever: no node (of `ray.nodes()`) has its processors and GPUs.

    Not where the settings say that the cluster grows.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    have = {(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in alive}
    if settings.grows or any(cpus >= settings.cpus and gpus >= settings.gpus for cpus, gpus in have):
        return
    offers = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in sorted(have, reverse=True))
    raise UserError(
        f"a cell needs sweep.ray.cpus={settings.cpus:g} and sweep.ray.gpus={settings.gpus:g} on one node, and the "
        f"nodes of the Ray cluster have {offers}; ask for less, or give sweep.ray.grows=true if the cluster "
        "adds nodes by itself"
    )


# The engine.

LEASE_S = 600.0
"""Seconds for which outcomes are kept for a command that does not ask: far more than a slow network folder takes."""
TRIES = 5


class RayTasks(Engine):
    """A task a cell, retried by Ray where its process or node vanished.

    Tasks belong to an actor on the cluster's head node, one an experiment's folder, not to this command, and go on
    where it ends.
    """

    def __init__(self, plans: list[Plan]) -> None:
        sweep = plans[0].config.sweep
        self.settings, self.leave = sweep.ray, sweep.action == "submit"
        self.retries, self.capacity = sweep.retries, len(plans)
        self.lease: Lease = (secrets.token_hex(8), max(LEASE_S, 10 * sweep.ray.poll_s))
        self.ray = connect(self.settings)
        try:
            if sweep.action != "cancel":
                refuse_what_no_node_has(self.ray.nodes(), self.settings)
            self.supervisors = {folder: self._supervisor(folder) for folder in {*map(_experiment, plans)}}
        except BaseException:
            self.ray.shutdown()
            raise
        self.submitted: dict[str, Plan] = {}
        self.there_before: set[str] = set()
        self.known: dict[str, str | Ended] = {}
        self.asked = False

    def _supervisor(self, folder: Path) -> Any:
        from experiments.engines.ray_cell import RaySupervisor

        name = f"cells of {folder}"
        options = {"name": name, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        head = {"node:__internal_head__": 0.001}  # where the cluster's own state is
        return self.ray.remote(RaySupervisor).options(**options, resources=head).remote()

    def _ask(self, folder: Path, method: str, *arguments: Any) -> Any:
        """Return the answer of an experiment's supervisor; where it is gone, that of a new one, which has no tasks."""
        for _ in range(TRIES):
            try:
                return self.ray.get(getattr(self.supervisors[folder], method).remote(*arguments))
            except self.ray.exceptions.RayActorError:
                time.sleep(0.2)  # one that is ending has its name for a moment
                self.supervisors[folder] = self._supervisor(folder)
        raise UserError(
            f"the Ray cluster at {self.settings.address} keeps losing its actors; check it with `ray status`"
        )

    def submit(self, planned: Plan) -> None:
        """Submit a task for the cell, unless one that an earlier command submitted is there."""
        record = str(write_record(planned).absolute())
        arguments = (self._at_once(), os.getcwd(), planned.config.trainer.threads)
        options = {
            "num_cpus": self.settings.cpus,
            "num_gpus": self.settings.gpus,
            "max_retries": self.retries,
            "name": f"{planned.config.name}/{planned.run}",
        }
        self.submitted[planned.run] = planned
        if not self._ask(_experiment(planned), "submit", self.lease, record, arguments, options):
            self.there_before.add(planned.run)

    def _at_once(self) -> int:
        """Cells that may train at once: by the processors of the cluster now, and at most as many as there are."""
        cpus = self.ray.cluster_resources().get("CPU", 1) / max(self.settings.cpus, 1e-9)
        return max(1, min(self.capacity, int(cpus)))

    def state(self, planned: Plan) -> State:
        """Return a cell's state, from its run folder and the last answer of its supervisor."""
        if planned.done:
            return State(ended=True, status=DONE)
        if self.leave:
            before = planned.run in self.there_before
            return State(ended=True, left=True, why="submitted before" if before else "submitted")
        known = self.known.get(_record(planned))
        if known is None:
            return State(ended=True, lost=True, why="the node that owned the sweep's tasks vanished")
        if known == WAITING:
            return State(WAITING)
        return progress(planned) if known == RUNNING else State(ended=True, status=known[0], why=known[1])

    def changed(self) -> list[Plan]:
        """Ask the supervisors for the states of their tasks; return all submitted cells, as any may have changed."""
        if not self.leave:
            if self.asked:
                time.sleep(self.settings.poll_s)
            self.asked = True
            answers = [self._ask(folder, "states", self.lease) for folder in self.supervisors]
            self.known = {record: what for states in answers for record, what in states.items()}
        return list(self.submitted.values())

    def cancel(self, planned: Plan) -> bool:
        """Kill the cell's process, wherever it is; it goes on from its last checkpoint."""
        return self._ask(_experiment(planned), "cancel", _record(planned))

    def close(self) -> None:
        """Disconnect: tasks go on, and a supervisor that nothing needs ends."""
        for supervisor in self.supervisors.values():
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.get(supervisor.leave.remote(self.lease[0]))
        self.ray.shutdown()


def _experiment(planned: Plan) -> Path:
    return planned.folder.path.parent.absolute()


def _record(planned: Plan) -> str:
    return str(record_path(planned).absolute())

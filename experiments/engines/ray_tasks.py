"""`ray`: one task a cell, on the nodes of a Ray cluster that share the results folder and this code."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from experiments.engines.cell import progress, record_path, write_record
from experiments.engines.interface import DONE, Engine, State
from experiments.paths import ROOT
from experiments.plan import Plan
from experiments.sweep_config import RayConfig
from zoo.errors import UserError

NAMESPACE = "archzoo"


class RayTasks(Engine):
    """A task a cell, retried by Ray where its process or node vanished.

    Tasks belong to an actor on the cluster's head node, not to this command, and go on where it ends.
    """

    def __init__(self, plans: list[Plan]) -> None:
        sweep = plans[0].config.sweep
        self.settings, self.leave = sweep.ray, sweep.action == "submit"
        self.retries, self.capacity = sweep.retries, len(plans)
        self.ray = _connect(self.settings)
        self.owner = f"sweep of {plans[0].folder.path.parent.absolute()}"
        self.keeper = self._keeper()
        self.submitted: dict[str, Plan] = {}
        self.known: dict[str, Any] = {}
        self.looked = False

    def _keeper(self) -> Any:
        from experiments.engines.ray_cell import Keeper

        options = {"name": self.owner, "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
        head = {"node:__internal_head__": 0.001}  # where the cluster's own state is
        return self.ray.remote(Keeper).options(**options, resources=head).remote()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the owner of the tasks answers; where it is gone, a new one, which has none."""
        for _ in range(self.retries + 1):
            try:
                return self.ray.get(getattr(self.keeper, method).remote(*arguments))
            except self.ray.exceptions.RayActorError:
                self.keeper = self._keeper()
        raise UserError(
            f"the Ray cluster at {self.settings.address} loses its actors; look at it with `ray status`"
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
        self._ask("submit", record, arguments, options)

    def _at_once(self) -> int:
        """Cells that may train at once: by the processors of the cluster now, and at most as many as there are."""
        cpus = self.ray.cluster_resources().get("CPU", 1) / max(self.settings.cpus, 1e-9)
        return max(1, min(self.capacity, int(cpus)))

    def state(self, planned: Plan) -> State:
        """From the run folder and what the tasks' owner said last."""
        if planned.done:
            return State(ended=True, status=DONE)
        if self.leave:
            return State(ended=True, left=True, why="submitted")
        record = str(record_path(planned).absolute())
        if record not in self.known:
            return State(ended=True, lost=True, why="the node that owned the sweep's tasks vanished")
        outcome = self.known[record]
        return progress(planned) if outcome is None else State(ended=True, status=outcome[0], why=outcome[1])

    def changed(self) -> list[Plan]:
        """All cells, after asking the owner of the tasks."""
        if not self.leave and self.looked:
            time.sleep(self.settings.poll_s)
        self.looked = True
        self.known = self._ask("ended")
        return list(self.submitted.values())

    def cancel(self, planned: Plan) -> bool:
        """Kill the cell's process, wherever it is; it goes on from its last checkpoint."""
        return self._ask("cancel", str(record_path(planned).absolute()))

    def close(self) -> None:
        """Tasks go on, if there are any; an owner without tasks ends."""
        try:
            if None not in self._ask("ended").values():
                self.ray.kill(self.keeper)
        except self.ray.exceptions.RayError:
            pass
        self.ray.shutdown()


def _connect(settings: RayConfig) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray.job_config import JobConfig
    except ImportError:
        raise UserError("sweep.engine=ray needs ray: pip install -e '.[ray]'") from None
    # Workers import this code from the same place as here; private, but the public way restarts them.
    found = JobConfig(_py_driver_sys_path=[str(ROOT)])
    here = settings.address == "local"
    before = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place
    try:
        ray.init(
            address=settings.address,
            namespace=NAMESPACE,
            job_config=found,
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

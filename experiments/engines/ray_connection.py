"""Ray: connected to a cluster, and asked whether its nodes have what a cell takes."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from experiments.configuration.sweep_config import RayConfig
from experiments.system.paths import ROOT
from zoo.errors import UserError

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
        f"a cell takes sweep.ray.cpus={settings.cpus:g} and sweep.ray.gpus={settings.gpus:g} of one node, and those of "
        f"the Ray cluster have {offers}; ask for less, or, where the cluster adds such nodes by itself, give "
        "sweep.ray.grows=true"
    )

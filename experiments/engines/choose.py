"""The engine that a configuration names."""

from __future__ import annotations

from experiments.engines.interface import Engine
from experiments.planning.plan import Plan


def make_engine(plans: list[Plan]) -> Engine:
    """The engine that the first plan's configuration names, for these cells. Raises UserError where it cannot work."""
    # Imported late: submitit and ray are optional.
    sweep = plans[0].config.sweep
    if sweep.engine == "slurm":
        from experiments.engines.slurm_jobs import SlurmJobs

        return SlurmJobs(plans)
    if sweep.engine == "ray":
        from experiments.engines.ray_tasks import RayTasks

        return RayTasks(plans)
    if sweep.engine == "list":
        from experiments.engines.command_list import CommandList

        return CommandList(plans)
    from experiments.engines.pool import Pool

    return Pool(plans)

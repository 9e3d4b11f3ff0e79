"""Engines: what runs the cells of a sweep. `sweep.engine` names one; each is a file of this folder.

Every engine runs cells by `execute`, on the run folder that its plan names, under that folder's lock, so that two
sweeps of two engines compute no cell twice, and whether a cell is done is told by the folder alone.
"""

from __future__ import annotations

from experiments.engines.engine import Engine
from experiments.planning.plan import Plan

# The engine that a configuration names.


def make_engine(plans: list[Plan]) -> Engine:
    """The engine that the first plan's configuration names, for these cells. Raises UserError where it cannot work."""
    # Imported late: submitit and ray are optional.
    sweep = plans[0].config.sweep
    if sweep.engine == "slurm":
        from experiments.engines.slurm import SlurmJobs

        return SlurmJobs(plans)
    if sweep.engine == "ray":
        from experiments.engines.ray_engine import RayTasks

        return RayTasks(plans)
    if sweep.engine == "list":
        from experiments.engines.command_list import CommandList

        return CommandList(plans)
    from experiments.engines.pool import Pool

    return Pool(plans)

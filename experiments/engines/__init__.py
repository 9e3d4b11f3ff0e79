"""Engines: what runs the cells of a sweep. `sweep.engine` names one; each is a file of this folder.

engine.py            the interface of engines, and cells as files that another process reads
pool.py              `pool`: processes of this machine;  preloaded_worker.py: forks that need no imports
slurm.py             `slurm`: one job a cell;  slurm_cell.py: the cell inside the job
ray_engine.py        `ray`: one task a cell;  ray_cell.py: the cell inside the task
supervisor.py        the owner of Ray's tasks, which outlives the command
command_list.py      `list`: a file with one command a cell

Every engine runs cells by `execute` in the run folder that the plan names, under the lock of that folder. So two
sweeps with two engines never compute a cell twice, and the folder alone says whether a cell is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # processes of other engines read this page, and may load nothing that takes time
    from experiments.engines.engine import Engine
    from experiments.planning.plan import Plan


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

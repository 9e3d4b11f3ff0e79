"""Engines: what runs the cells of a sweep. `sweep.engine` names one.

A new engine is a file here, a line in `make_engine` and `check`, and a choice of `sweep.engine` in the schema.

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
    from experiments.configuration.schema import Config
    from experiments.engines.engine import Engine
    from experiments.planning.plan import Plan


def check(config: Config) -> None:
    """Refuse settings of `sweep` that the engine cannot serve, and devices that it gives no cell. Raises UserError."""
    from zoo.errors import UserError

    sweep, slurm, trainer, engine = config.sweep, config.sweep.slurm, config.trainer, config.sweep.engine
    if sweep.action != "wait" and engine not in ("slurm", "ray"):
        raise UserError(
            f"sweep.action={sweep.action} needs sweep.engine=slurm or ray, whose cells outlive the command; leave it "
            "out"
        )
    address = {"slurm": f"slurm.cluster={slurm.cluster}", "ray": f"ray.address={sweep.ray.address}"}
    if sweep.action == "submit" and address[engine].endswith("=local"):
        raise UserError(
            f"sweep.action=submit leaves cells to a cluster, and sweep.{address[engine]} is this machine; "
            "leave out one of the two"
        )
    if not 60 * slurm.minutes > slurm.signal_s:
        raise UserError(
            f"sweep.slurm.minutes={slurm.minutes:g} leaves no time before sweep.slurm.signal_s={slurm.signal_s}; raise "
            "the first or lower the second"
        )
    bad = [option for option in slurm.more if not option.partition("=")[2]]
    if bad:
        raise UserError(f"sweep.slurm.more has {bad[0]!r}; write options as name=value, e.g. constraint=a100")
    for key, value in (("cpus", sweep.ray.cpus), ("gpus", sweep.ray.gpus)):
        if value > 1 and not value.is_integer():
            raise UserError(
                f"sweep.ray.{key}={value:g}: Ray gives a cell whole ones, or part of one; give {int(value) + 1}"
            )
    if engine not in ("slurm", "ray") or trainer.processes == 1:
        return
    if trainer.nodes > 1:
        raise UserError(
            f"trainer.nodes={trainer.nodes}: sweep.engine={engine} gives a cell one node; leave the engine out and "
            "run the command on every node (docs/devices.md)"
        )
    gpus = slurm.gpus if engine == "slurm" else sweep.ray.gpus
    if gpus < trainer.devices and (config.device == "cuda" or (config.device == "auto" and gpus)):
        raise UserError(
            f"trainer.devices={trainer.devices}, but sweep.{engine}.gpus={gpus:g}; give "
            f"sweep.{engine}.gpus={trainer.devices}"
        )


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

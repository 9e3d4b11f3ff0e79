"""Refusing settings of `sweep` that cannot work, before anything is done."""

from __future__ import annotations

import math

from experiments.configuration.sweep_config import SweepConfig
from zoo.errors import UserError, unknown


def check_sweep(sweep: SweepConfig) -> None:
    """Refuse what an engine cannot do with, and times that leave none to train. Raises UserError."""
    _check_choices(sweep)
    _check_numbers(sweep)
    if sweep.action != "wait" and sweep.engine not in ("slurm", "ray"):
        raise UserError(
            f"sweep.action={sweep.action} is of sweep.engine=slurm and ray, whose cells outlive it; leave it out"
        )
    brief = {"slurm": f"slurm.cluster={sweep.slurm.cluster}", "ray": f"ray.address={sweep.ray.address}"}
    if sweep.action == "submit" and brief[sweep.engine].endswith("=local"):
        raise UserError(
            f"sweep.action=submit leaves cells to a cluster, and sweep.{brief[sweep.engine]} is this machine"
        )
    if not 60 * sweep.slurm.minutes > sweep.slurm.signal_s:
        raise UserError(
            f"sweep.slurm.minutes={sweep.slurm.minutes:g} leaves no time before sweep.slurm.signal_s="
            f"{sweep.slurm.signal_s}; raise the first or lower the second"
        )
    bad = [option for option in sweep.slurm.more if not option.partition("=")[2]]
    if bad:
        raise UserError(f"sweep.slurm.more has {bad[0]!r}; write options as name=value, e.g. constraint=a100")


def _check_choices(sweep: SweepConfig) -> None:
    for key, value, known in (
        ("engine", sweep.engine, ("pool", "slurm", "ray", "list")),
        ("action", sweep.action, ("wait", "submit", "cancel")),
        ("slurm.cluster", sweep.slurm.cluster, ("slurm", "local")),
    ):
        if value not in known:
            raise unknown(f"sweep.{key}", value, known)


def _check_numbers(sweep: SweepConfig) -> None:
    slurm, ray = sweep.slurm, sweep.ray
    for key, value, least in (
        ("retries", sweep.retries, 0),
        ("slurm.signal_s", slurm.signal_s, 1),
        ("slurm.requeues", slurm.requeues, 0),
        ("slurm.cpus", slurm.cpus, 1),
        ("slurm.gpus", slurm.gpus, 0),
        ("slurm.jobs", slurm.jobs, 1),
        ("ray.cpus", ray.cpus, 0),
        ("ray.gpus", ray.gpus, 0),
    ):
        if value < least:
            raise UserError(f"sweep.{key}={value} must be at least {least}")
    for key, value in (
        ("slurm.poll_s", slurm.poll_s),
        ("ray.poll_s", ray.poll_s),
        ("slurm.memory_gb", slurm.memory_gb),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"sweep.{key}={value} must be a number above 0")
    for key, value in (("cpus", ray.cpus), ("gpus", ray.gpus)):
        if value > 1 and not value.is_integer():
            raise UserError(
                f"sweep.ray.{key}={value:g}: Ray shares out parts of one only; give {math.ceil(value)}"
            )

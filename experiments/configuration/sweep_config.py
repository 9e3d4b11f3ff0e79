"""The node `sweep` of the configuration: how a sweep runs, and the settings of its engines."""

from dataclasses import dataclass, field


@dataclass
class SlurmConfig:
    """Settings of sweep.engine=slurm: one job per cell.

    cluster: slurm, or local: processes of this machine instead of jobs, sweep.workers at a time, to try it out.
    partition: sbatch's --partition, the nodes that jobs may run on (null: the cluster's default).
    account: sbatch's --account, which the time is charged to (null: the cluster's default).
    qos: sbatch's --qos, the quality of service (null: the cluster's default).
    minutes: time limit of a job. A cell that needs longer resumes from its checkpoint in the same job, requeued.
    signal_s: seconds before the time limit at which a cell is told to stop; give more than the longest step with its
        validation and a checkpoint takes.
    requeues: how often a job may reach its time limit before its cell counts as paused (local: at most 5).
    cpus: processors of a job.
    gpus: GPUs of a job.
    memory_gb: memory of a job in GB (null: the cluster's default).
    setup: shell lines to run before the cell, such as "module load cuda".
    more: further sbatch options by their long names, such as ["constraint=a100", "exclude=node3"].
    jobs: most jobs in the queue at once.
    poll_s: seconds between two checks of the queue.
    """

    cluster: str = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: float = 240.0
    signal_s: int = 120
    requeues: int = 20
    cpus: int = 1
    gpus: int = 0
    memory_gb: float | None = None
    setup: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    jobs: int = 100
    poll_s: float = 5.0


@dataclass
class RayConfig:
    """Settings of sweep.engine=ray: one task per cell.

    address: address of the cluster: auto (the one this machine belongs to), HOST:PORT, or local (one on this machine
        that ends with the command).
    cpus: processors per cell.
    gpus: GPUs per cell.
    grows: whether the cluster adds nodes for waiting tasks (Ray's autoscaler). Otherwise cells that need more than any
        node has are refused.
    poll_s: seconds between two checks of the tasks.
    """

    address: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0
    grows: bool = False
    poll_s: float = 1.0


@dataclass
class SweepConfig:
    """How a sweep runs; none of it is part of a run's identity.

    engine: what runs the cells: pool (processes of this machine), slurm, ray, or list (a file with a command per cell).
    workers: cells that train at the same time on this machine, one process each.
    action: wait (train, and wait for the cells), submit (hand them to slurm or ray and end), or cancel (end cells that
        earlier commands left with slurm or ray).
    retries: how often a cell whose process or node vanished is submitted again (slurm, ray).
    slurm: settings of engine=slurm.
    ray: settings of engine=ray.
    """

    workers: int = 2
    engine: str = "pool"
    action: str = "wait"
    retries: int = 3
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)

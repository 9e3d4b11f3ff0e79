"""A real Slurm of one node on this machine, from Debian's packages (slurmctld, slurmd, slurm-client, munge)."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=10
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4096 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str:
    """Why there can be no Slurm here; "" where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"a real Slurm needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


class SlurmCluster:
    """Starts the daemons in a folder of their own; `environment` is what its commands need."""

    def __init__(self, folder: Path, cpus: int) -> None:
        folder.mkdir(mode=0o700)
        host = socket.gethostname().partition(".")[0]
        for name in ("spool", "state"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        config = CONFIG.format(folder=folder, host=host, cpus=cpus, ports=_free_ports())
        (folder / "slurm.conf").write_text(config)
        (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}\n")
        self.folder, self.environment = folder, {"SLURM_CONF": str(folder / "slurm.conf")}
        files = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        munge = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
        self.daemons = [self._start("munged", "--foreground", "--force", *munge)]
        self.daemons += [self._start("slurmctld", "-D"), self._start("slurmd", "-D", "-N", host)]

    def _start(self, *command: str) -> subprocess.Popen:
        with open(self.folder / f"{command[0]}.out", "w") as out:
            return subprocess.Popen(command, env={**os.environ, **self.environment}, stdout=out, stderr=out)

    def wait_until_up(self, seconds: float = 300) -> None:
        """Until the node takes jobs."""
        deadline = time.monotonic() + seconds
        while "idle" not in (said := self.run("sinfo", "--noheader", "--format=%T")):
            assert time.monotonic() < deadline, (
                said,
                [p.read_text()[-2000:] for p in self.folder.glob("*.log")],
            )
            time.sleep(0.5)

    def run(self, *command: str) -> str:
        """What one of Slurm's commands says."""
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        return done.stdout + done.stderr

    def stop(self) -> None:
        """End all jobs and the daemons."""
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        self.run("scancel", "--user=root")
        time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(300)


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

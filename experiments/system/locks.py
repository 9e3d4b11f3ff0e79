"""Locks between processes, by files: the system's (flock) on one machine, claims with a heartbeat between machines.

The system frees its locks when the holder ends, also when it is killed. A claim is a file that only one process can
create; its holder touches it every `LEASE / 6` seconds, and who has seen it untouched for LEASE seconds takes it over,
at once where the holder was a process of this machine that is gone. On network file systems flock may hold within one
node only, so that nothing but a claim is asked there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil
from filelock import BaseFileLock, FileLock, Timeout

from experiments.system import signals
from zoo.errors import UserError

LEASE = 180.0  # seconds; above what network file systems cache a file's times for (60 s)
CLAIM_LOST = os.EX_TEMPFAIL

ONE_MACHINE = (
    *(
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "jfs",
        "tmpfs",
        "ramfs",
        "rootfs",
        "overlay",
        "aufs",
    ),
    *("vfat", "exfat", "ntfs", "apfs", "hfs"),
)
"""Types that one machine mounts at a time. Locks of others (NFS, Lustre, BeeGFS, FUSE, 9p) may be local to a node."""


def is_of_one_machine(folder: Path) -> bool:
    """Return whether `folder` (or, where it is missing, its nearest parent) lies on a file system of one machine.

    False for network file systems and for types that are not known; True where the system does not list its mounts.
    """
    place = folder.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    kinds = [mounts[parent].lower() for parent in (place, *place.parents) if parent in mounts]
    return not kinds or kinds[0] in ONE_MACHINE


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(
    path: Path,
    message: str,
    *,
    wait: bool = True,
    stream: TextIO | None = None,
    nodes: bool = False,
    lease: float = LEASE,
) -> Iterator[None]:
    """Hold the lock file at `path` while inside; made where it is missing, left when done (claims are removed).

    message: printed to `stream` (null: standard output) before waiting for another process.
    nodes: processes of other machines may ask too, even where the file system is one of this machine (it may export
    it); lease: seconds without a heartbeat after which a claim is taken over.
    Raises Held where wait is False and another process holds it; signals.Paused where this process is told to make
    room while it waits; OSError where the file cannot be opened, as in a folder that may not be written to.
    """
    with contextlib.ExitStack() as held:
        for lock in _locks(path, nodes, lease):
            _acquire(lock, message, wait, stream)
            held.callback(lock.release)
        yield


def _locks(path: Path, nodes: bool, lease: float) -> Iterator[BaseFileLock]:
    here = is_of_one_machine(path.parent)
    if here:
        yield FileLock(path)
    if nodes or not here:
        yield _claim(claim_path(path), lease)


def claim_path(path: Path) -> Path:
    """Return the path of the claim that goes with a lock file."""
    return path.with_name(f"{path.name}.claim")


def _claim(path: Path, lease: float) -> BaseFileLock:
    try:
        from filelock import SoftFileLease
    except ImportError:
        raise UserError(
            f"{path.parent} is on a file system that several machines may share, and claims there need "
            "filelock>=3.30: pip install -U filelock"
        ) from None
    return SoftFileLease(path, lease_duration=lease, heartbeat_interval=lease / 6, on_compromise=_give_up)


def _give_up(loss: object) -> None:
    """End this process at once: its claim is lost, and another one may be writing to the same folder."""
    print(f"error: another process took over: {loss}", file=sys.stderr, flush=True)
    os._exit(CLAIM_LOST)


def _acquire(lock: BaseFileLock, message: str, wait: bool, stream: TextIO | None) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if not wait:
            raise Held(f"{lock.lock_file} is held by another process") from None
        print(message, file=stream or sys.stdout, flush=True)
        _wait_for(lock)


def _wait_for(lock: BaseFileLock) -> None:
    try:
        lock.acquire(poll_interval=0.05, cancel_check=lambda: signals.received() is not None)
    except Timeout:  # by cancel_check; there is no other limit
        why = f"stopped by {signals.received().name}"
        raise signals.Paused(
            f"{why} while another process holds {lock.lock_file}; the same command resumes it"
        ) from None

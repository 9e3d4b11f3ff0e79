"""File systems: whether all processes that see a folder run on one machine, so that the system's locks reach them."""

from __future__ import annotations

from pathlib import Path

import psutil

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
    """Whether `folder` (or, where it is missing, its nearest parent) lies on a file system of one machine.

    False for network file systems and for types that are not known; True where the system does not list its mounts.
    """
    place = folder.resolve()
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    kinds = [mounts[parent].lower() for parent in (place, *place.parents) if parent in mounts]
    return not kinds or kinds[0] in ONE_MACHINE

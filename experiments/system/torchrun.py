"""torchrun, which ends when the process that started it does, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

from experiments.system import signals

PR_SET_PDEATHSIG = 1
PARENT = "ARCHZOO_PARENT"
"""The environment variable that tells a process, and only the one that is started with it, the id of its parent."""

END = signal.SIGHUP
"""What ends torchrun, which passes it on to its processes."""


def as_parent() -> dict[str, str]:
    """Return the environment variables for a process that this one starts, and that calls `end_with_parent`."""
    return {PARENT: str(os.getpid())}


def end_with_parent(number: int, parent: int | None = None) -> None:
    """Let the system send this process a signal when its parent ends. Linux only; elsewhere nothing happens.

    Ends at once where the parent has ended before that could be arranged. parent: its id; None: as `as_parent` told.
    """
    pid = os.environ.pop(PARENT, None)  # processes that this one starts have another parent
    if parent is None and pid is not None:
        parent = int(pid)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os._exit(128 + number)


def leave(status: int = 0) -> NoReturn:
    """End this process, one of those that torchrun started, without taking the interpreter apart.

    Everything has to be written and told. gloo's threads, which live as long as a sharded model's mesh, need the
    interpreter to free the tensors of the last exchange: one that asks for it too late aborts the process, which would
    make a failure of work that is complete.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end_with_parent(END)
    os.environ.update(as_parent())
    # A job's manager may tell every process to make room: those that train handle it once they can (`rank`).
    for number in (signals.PASSED_ON, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from torch.distributed.run import main

    main()

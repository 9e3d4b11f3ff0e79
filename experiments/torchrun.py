"""torchrun, which ends when the process that started it does, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys

from experiments import preemption

PR_SET_PDEATHSIG = 1

END = signal.SIGHUP
"""What ends torchrun, which passes it on to its processes."""


def end_with_parent(number: int) -> None:
    """Let the system send this process a signal when its parent ends. Linux only; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


if __name__ == "__main__":
    end_with_parent(END)
    # A job's manager may tell every process to make room: those that train heed it once they can (`rank`).
    for number in (preemption.PASSED_ON, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from torch.distributed.run import main

    main()

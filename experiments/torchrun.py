"""torchrun, which ends when the process that started it does, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Let the system send this process a signal when its parent ends. Linux only; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)  # which torchrun passes on to its processes
    from torch.distributed.run import main

    main()

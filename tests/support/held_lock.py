"""A lock that somebody else holds."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from experiments.system.locks import locked


@contextlib.contextmanager
def held_elsewhere(path: Path, nodes: bool = False) -> Iterator[None]:
    """While inside, another thread holds the lock: the system and claims keep it from this one as from a process."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(path, "", wait=False, nodes=nodes):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        yield
    finally:
        done.set()
        thread.join()

"""How a process ended that left no record."""

from __future__ import annotations


def exit_reason(status: int | None) -> str:
    """How a process ended that left no record: its exit status, or the signal that killed it."""
    return (
        f"killed by signal {-status}"
        if status is not None and status < 0
        else f"stopped with status {status}"
    )

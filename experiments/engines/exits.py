"""Ends of processes that left no record."""

from __future__ import annotations


def exit_reason(status: int | None) -> str:
    """Return the end of a process that left no record in words: its exit status, or the signal that killed it."""
    return (
        f"killed by signal {-status}"
        if status is not None and status < 0
        else f"stopped with status {status}"
    )

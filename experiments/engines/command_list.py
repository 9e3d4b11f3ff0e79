"""`list`: a file with one command a cell, for job arrays, Kubernetes jobs, or anything else that runs commands."""

from __future__ import annotations

import os
import shlex
import sys

from experiments.engines.cell import record_path, write_record
from experiments.engines.interface import Engine, State
from experiments.paths import ROOT
from experiments.plan import Plan
from zoo.files import write_atomic

COMMANDS = "cells.txt"


class CommandList(Engine):
    """Writes NAME/cells.txt anew: a line for each cell that is not complete. Runs nothing."""

    def __init__(self, plans: list[Plan]) -> None:
        self.capacity = len(plans)
        self.written: list[Plan] = []
        self.places = {planned.folder.path.parent for planned in plans}

    def submit(self, planned: Plan) -> None:
        """Write the cell's record; its command joins the file at the end."""
        write_record(planned)
        self.written.append(planned)

    def state(self, planned: Plan) -> State:
        """Ended, and left to whoever runs the command."""
        return State(ended=True, left=True, why=f"written: {record_path(planned)}")

    def changed(self) -> list[Plan]:
        """All cells that are written; the files of commands are, too."""
        for place in self.places:
            lines = [command(p) for p in self.written if p.folder.path.parent == place]
            write_atomic(place / COMMANDS, "".join(f"{line}\n" for line in lines))
        return list(self.written)

    def cancel(self, planned: Plan) -> bool:
        """Nothing runs here that could be ended."""
        return False

    def close(self) -> None:
        """Nothing is held open."""

    def farewell(self, left: int) -> str:
        """Where the commands are."""
        files = ", ".join(str(place / COMMANDS) for place in sorted(self.places))
        return f"{left} commands, one a line: {files}; each exits 0 when its cell is complete, and may be given again"


def command(planned: Plan) -> str:
    """The shell command that trains a cell with this Python; it goes to this folder, where relative paths start."""
    words = [sys.executable, str(ROOT / "run.py"), "job=cell", f"run={record_path(planned).absolute()}"]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(words)}"

"""`list`: a file with one command a cell, for job arrays, Kubernetes jobs, or anything else that runs commands."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

from experiments.engines.engine import FOLDER, Engine, State, record_path, write_record
from experiments.planning.plan import Plan
from experiments.system.paths import BLOCKS, program
from zoo.errors import UserError
from zoo.files import write_atomic

COMMANDS = "cells.txt"
_RUN = re.compile(rf"/{re.escape(FOLDER)}/([0-9a-f]+)\.json")


class CommandList(Engine):
    """Writes NAME/cells.txt: a line for each cell, which keeps its number as long as the file is there. Runs nothing.

    Job arrays name cells by the numbers of their lines, and may be under way when the command is given again. So lines
    stay, also those of cells that are complete by now, and new cells are added at the end.
    """

    def __init__(self, plans: list[Plan]) -> None:
        for planned in plans:
            _refuse_unnameable(record_path(planned).absolute())
        self.capacity = len(plans)
        self.written: list[Plan] = []
        self.places = sorted({planned.folder.path.parent for planned in plans})
        self.lines: dict[Path, int] = {}

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
            new = [planned.run for planned in self.written if planned.folder.path.parent == place]
            runs = list(dict.fromkeys([*listed(place / COMMANDS), *new]))
            caches = {planned.run: planned.config.data.cache_dir for planned in self.written}
            lines = [command(place / FOLDER / f"{run}.json", caches.get(run)) for run in runs]
            write_atomic(place / COMMANDS, "".join(f"{line}\n" for line in lines))
            self.lines[place / COMMANDS] = len(lines)
        return list(self.written)

    def cancel(self, planned: Plan) -> bool:
        """Return False: the commands are run elsewhere, so that there is no process to end."""
        return False

    def close(self) -> None:
        """Nothing is held open."""

    def detached_message(self, left: int) -> str:
        """Say where the commands are, and how many, with those of cells that are complete or of earlier sweeps."""
        files = ", ".join(f"{file} ({count} lines)" for file, count in self.lines.items())
        return (
            f"{left} cells to train, one command per line: {files}; each exits 0 when its cell is complete, and may be "
            "given again. Lines keep their numbers; delete the file, and the same command lists what is left"
        )


def listed(file: Path) -> list[str]:
    """The runs that a file of commands names, in its order; none where there is no file.

    Only their names are taken: commands that somebody else wrote there are not kept.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [match[1] for match in map(_RUN.search, lines) if match]


def command(record: Path, cache_dir: str | None = None) -> str:
    """The shell command that trains the cell of a record with this Python, from any folder.

    One simple command, so that signals reach the process that trains and no shell around it.
    cache_dir: as data.cache_dir.
    """
    words = [*program(), "job=cell", override("run", str(record.absolute()))]
    if cache_dir is not None:
        words.append(override("data.cache_dir", cache_dir))
    if blocks := os.environ.get(BLOCKS):
        folders = (QuotedString(place, Quote.single).with_quotes() for place in blocks.split(os.pathsep))
        words.append(f"blocks=[{','.join(folders)}]")
    return shlex.join(words)


def override(key: str, text: str) -> str:
    """The word of a command line that gives a key exactly this text, which has no interpolation in it (${)."""
    return f"{key}={QuotedString(text, Quote.single).with_quotes()}"


def _refuse_unnameable(record: Path) -> None:
    for text, why in (
        ("\n", "a line break, but a command is one line"),
        ("${", "${, which a command would interpolate"),
    ):
        if text in str(record):
            raise UserError(f"{str(record.parent.parent)!r} has {why}; give another folder with results=...")

"""Messages from the processes of a run to whoever started them: lines on their standard output, among other words."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "\x1e"
"""The first character of a line that is a message."""


def tell(**message: Any) -> None:
    """Send a short message from a process of a run, in one write, which others' do not cut."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), f"{MARK}{json.dumps(message)}\n".encode())


def tell_failure(folder: Path, record: dict[str, Any]) -> None:
    """Send the record of a failure: in a file of `folder`, for what several processes write into one pipe is kept
    apart only as long as it is short (PIPE_BUF, 4,096 bytes on Linux), which tracebacks are not.
    """
    place = folder / f"failure-{os.getpid()}.json"
    place.write_text(json.dumps(record), encoding="utf-8")
    tell(outcome="failed", record=place.name)


def parse(lines: Iterable[str], folder: Path) -> Iterator[dict[str, Any]]:
    """The messages among the lines of the processes' output, as they come; other words are printed.

    folder: where records of failures stand (`tell_failure`); they are read.
    """
    for line in lines:
        # A message may come between another process's words and their end.
        words, mark, text = line.partition(MARK)
        print(words, end="", flush=True)
        if not mark:
            continue
        message = json.loads(text)
        if "record" in message:
            message["record"] = json.loads((folder / message["record"]).read_text(encoding="utf-8"))
        yield message

"""A record of finished work, in a file, so that the next attempt skips it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo.errors import UserError
from zoo.files import write_json


class Record:
    """Names of finished pieces of work, each with a note. Raises UserError where the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Any] = _read(path)

    def __contains__(self, name: str) -> bool:
        return name in self.done

    def add(self, name: str, note: Any) -> None:
        """Add a finished piece of work, and write the file."""
        self.done[name] = note
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.done)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and what it lists is done again") from error

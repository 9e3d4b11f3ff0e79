"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes | memoryview | str) -> None:
    """Put content at path by an atomic rename: a reader sees the old file or the new one, never a part.

    Raises OSError (a full disk, say) with the old file intact and no partial file left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write plain values as readable JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

"""Files that exist whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Call ``write(temporary path)`` beside ``path``, then rename over it; a failure leaves ``path`` alone.

    The temporary name keeps the suffix, because pandas and matplotlib choose a format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

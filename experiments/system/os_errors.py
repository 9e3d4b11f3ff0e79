"""The operating system's errors in one line: the file and the remedy."""

from __future__ import annotations

import errno
import os


def explain(error: OSError) -> str:
    """One line: the file, the system's message and the remedy."""
    place = error.filename2 or error.filename  # of two, where a finished file should have gone
    file = f"{place}: " if isinstance(place, str | os.PathLike) else ""
    said = error.strerror or str(error) or type(error).__name__
    return f"{file}{said}; {_REMEDIES.get(error.errno, 'put that right')}, then give the same command again"


def one_line(text: object) -> str:
    """The text on one line, without control characters, so that text from files cannot control the terminal."""
    return "".join(c for c in " ".join(str(text).split()) if c.isprintable())


_ROOM = "the disk is full or its quota used up: make room"
_RIGHTS = "it may not be read or written: change its permissions, or give another folder (results=...)"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "files may not grow so large here: lift the limit (ulimit -f), or give another folder (results=...)",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOTDIR: "there is a file where a folder belongs: move or remove it",
    errno.EEXIST: "there is a file where a folder belongs: move or remove it",
    errno.EISDIR: "there is a folder where a file belongs: move or remove it",
    errno.ELOOP: "there is a link where a file or folder of the run belongs: remove it",
}

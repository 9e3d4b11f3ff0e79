"""The files in which a function is called from `python run.py WORDS` to the first training loss, and these functions.

    python tests/support/opened_files.py OUT WORDS...        OUT: JSON, file -> name of a function -> its calls

Files of kernels, zoo and experiments; what only runs while a module is imported does not count.
"""

import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(f"{ROOT / room}{os.sep}" for room in ("kernels", "zoo", "experiments"))
IMPORTING = ("_find_and_load", "_call_with_frames_removed")


def trace(out: Path, words: list[str]) -> None:
    """Run the command; ends this process, without cleaning up, once the first training step has its loss."""
    import experiments.cli  # what these take to import need not be watched
    import experiments.training.train  # noqa: F401

    found: dict[str, dict[str, int]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(ROOMS):
            return
        if event == "return":
            if code.co_name == "training_step":
                sys.setprofile(None)
                out.write_text(json.dumps(found, sort_keys=True))
                os._exit(0)
            return
        names = found.get(code.co_filename[len(str(ROOT)) + 1 :], {})
        if code.co_qualname in names:
            names[code.co_qualname] += 1
        elif not code.co_name.startswith("<") and not _importing(frame):
            found.setdefault(code.co_filename[len(str(ROOT)) + 1 :], {})[code.co_qualname] = 1

    sys.argv = ["run.py", *words]
    threading.setprofile(profile)
    sys.setprofile(profile)
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in IMPORTING:
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    trace(Path(sys.argv[1]), sys.argv[2:])

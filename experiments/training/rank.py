"""One process of a run that takes several; torchrun starts it: `python -m experiments.training.rank PLAN`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from experiments.system import signals
from experiments.system.processes import tell, tell_failure
from experiments.system.torchrun import END, end_with_parent, leave

MOST = 1000
"""Characters of a reason, so that its message stays whole beside those of other processes."""


def main(file: Path) -> int:
    """Take part in the run that the file describes (`execute.read_plan`); returns the exit status.

    A pause is no failure: torchrun would end the processes that are still on their way to it.
    """
    with signals.loading():
        from experiments.parallel import group
        from experiments.runs import RunPaused, failure_record
        from experiments.system.processes import ThrottledSender
        from experiments.training.execute import read_plan, take_part
        from zoo.errors import UserError

    signals.pause_on(signals.PASSED_ON)
    tell(process=os.getpid())
    planned, workers = read_plan(file)
    planned.config.trainer.progress = False
    send = ThrottledSender(lambda progress: tell(progress=progress))
    # Words are said once a node; outcomes by all, for whichever fails first has the reason.
    words = contextlib.nullcontext() if os.environ["LOCAL_RANK"] == "0" else _silent()
    try:
        with words, group.joined(group.pick_device(planned.config.device), planned.config.trainer.context):
            take_part(planned, send, workers)
    except RunPaused as pause:
        tell(outcome="paused", message=str(pause)[:MOST])
    except UserError as error:
        tell(outcome="refused", message=str(error)[:MOST])
        return 1
    except Exception as error:
        traceback.print_exc()
        tell_failure(file.parent, failure_record(error))
        return 1
    return 0


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL)
    # A job's manager sends it to every process of a job that has to end soon, torchrun to those that are left.
    signals.pause_on_from_others(signal.SIGTERM, os.getppid())
    signal.signal(END, signal.SIG_DFL)  # nohup would have it ignored
    leave(main(Path(sys.argv[1])))

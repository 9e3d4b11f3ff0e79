"""Running the real program: as a process of its own, or in this one where only its words and its files matter."""

import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import psutil
import torch

from experiments.cli import main
from experiments.configuration.compose import compose
from experiments.configuration.schema import Config
from experiments.runs import WALL_CLOCK_COLUMNS, read_metrics

ROOT = Path(__file__).resolve().parents[2]
RUN = str(ROOT / "run.py")

# A model of 11,000 parameters, whose step takes milliseconds.
TINY = [
    *("device=cpu", "model=hypergraph", "model.depth=2", "model.d_model=16", "model.n_heads=2", "data=text"),
    *("data.tokenizer=bytes", "data.seq_len=32", "data.batch_size=4", "evaluate.splits=[test]"),
    *("trainer.max_steps=20", "trainer.log_every=5", "trainer.val_every=10", "trainer.val_tokens=256"),
    *("trainer.checkpoint_every=5", "trainer.progress=false", "optim.warmup_steps=5"),
]


class Outcome(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


class Lab:
    """A place to run the program in: an empty working folder, a results folder, a small text and a cache.

    Arguments of every command start with TINY, so that later ones win.
    """

    def __init__(self, folder: Path, text: Path, cache: Path) -> None:
        self.folder, self.text, self.cache = folder, text, cache
        self.results, self.cwd = folder / "results", folder / "cwd"
        self.cwd.mkdir(parents=True)
        self.temp = Path(tempfile.mkdtemp(prefix="lab-"))  # short: sockets stand in it
        weakref.finalize(self, shutil.rmtree, self.temp, ignore_errors=True)
        self.started = 0

    def arguments(self, *more: str) -> list[str]:
        """What follows `python run.py`; flags such as --multirun come first."""
        flags = [word for word in more if word.startswith("-")]
        words = [word for word in more if not word.startswith("-")]
        return [*flags, *later_wins([*TINY, f"data.path={self.text}", f"results={self.results}", *words])]

    def start(self, *more: str) -> "Process":
        """The command as a process of its own session, with its output in files."""
        self.started += 1
        return Process(self.arguments(*more), self, self.folder / f"process-{self.started}")

    def run(self, *more: str, timeout: float = 300) -> Outcome:
        """The command as a process, waited for."""
        return self.start(*more).wait(timeout)

    def here(self, *more: str) -> Outcome:
        """The command in this process: the same entry, without the seconds that imports take."""
        out, err = io.StringIO(), io.StringIO()
        with self._inside(*more), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main()
        return Outcome(status, out.getvalue(), err.getvalue())

    def done(self, *more: str) -> Outcome:
        """The outcome of a command, here, that has to succeed."""
        outcome = self.here(*more)
        assert outcome.status == 0, outcome
        return outcome

    def refused(self, *more: str) -> str:
        """What a command, here, says to a mistake: it has the status of bad input, and leaves nothing behind."""
        before = self.left_behind()
        outcome = self.here(*more)
        assert outcome.status == 2, outcome
        assert self.left_behind() == before
        return outcome.err

    def compose(self, *more: str) -> list[Config]:
        """The configurations that the command asks for."""
        with self._inside(*more):
            return compose()

    def run_folders(self) -> list[Path]:
        """All run folders, in the order of their names."""
        return sorted(path.parent for path in self.results.glob("*/*/config.yaml"))

    def run_folder(self) -> Path:
        """The one run folder."""
        (folder,) = self.run_folders()
        return folder

    def left_behind(self) -> list[str]:
        """Files outside the results folder, and the results folder if there is one; nothing after bad input."""
        found = [path for place in (self.cwd, self.temp) for path in place.rglob("*")]
        return [str(path) for path in [*found, *([self.results] if self.results.is_dir() else [])]]

    def environment(self) -> dict[str, str]:
        changes = {"ARCHZOO_CACHE": str(self.cache), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temp)}
        changes["PYTHONFAULTHANDLER"] = "1"
        return {**os.environ, **changes}

    @contextlib.contextmanager
    def _inside(self, *more: str):
        argv = mock.patch.object(sys, "argv", [RUN, *self.arguments(*more)])
        with argv, mock.patch.dict(os.environ, self.environment()), contextlib.chdir(self.cwd):
            yield


class Process:
    """A running command; leads a session of its own, whose processes all carry its id."""

    def __init__(self, arguments: list[str], lab: Lab, log: Path) -> None:
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, RUN, *arguments],
                cwd=lab.cwd,
                env=lab.environment(),
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_interruptible,
            )
        self.pid = self.popen.pid
        weakref.finalize(self, _kill_if_running, self.popen)  # a failed test leaves nothing behind

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def processor_seconds(self) -> float:
        """Processor time that the process has taken when it ends; waits for that."""
        watched = psutil.Process(self.pid)
        while watched.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)
        times = watched.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def wait(self, timeout: float = 300) -> Outcome:
        """The outcome; a process that takes too long is killed and raises TimeoutExpired."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise
        return Outcome(status, self.out.read_text(), self.err.read_text())


def _interruptible() -> None:
    """In the child: what a shell starts in the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill_if_running(popen: subprocess.Popen) -> None:
    if popen.poll() is None:
        os.killpg(popen.pid, signal.SIGKILL)


def write_text(path: Path, paragraphs: int = 150, seed: int = 0) -> Path:
    """A text that a small model learns quickly, with letters of two bytes in it."""
    draw = random.Random(seed)
    words = ["alpha", "beta", "gamma", "delta", "the", "of", "and", "zeta", "eta", "théta"]
    lines = [" ".join(draw.choices(words, k=30)) + ".\n" for _ in range(paragraphs)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def steady_rows(folder: Path) -> list[dict[str, str]]:
    """The metric rows of a run without what the clock decides."""
    return [
        {k: v for k, v in row.items() if k not in WALL_CLOCK_COLUMNS}
        for row in read_metrics(folder / "metrics.csv")
    ]


def last_checkpoint(folder: Path) -> dict:
    """The newest checkpoint without what the clock decides."""
    found = torch.load(max((folder / "checkpoints").glob("*.ckpt")), weights_only=True)
    for key in ("seconds", "rows"):
        del found["callbacks"]["MetricRows"][key]
    return found


def differences(a: object, b: object, where: str = "") -> list[str]:
    """Where two nested structures of plain values and tensors are not equal bit for bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if type(a) is not type(b):
        return [where]
    if isinstance(a, dict) and a.keys() == b.keys():
        return [x for key in a for x in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [
            x for i, pair in enumerate(zip(a, b, strict=True)) for x in differences(*pair, f"{where}[{i}]")
        ]
    return [] if a == b else [where]


def assert_same_run(a: Path, b: Path, message: str = "") -> None:
    """Two finished runs: the same metric rows, exported weights and last checkpoint, bit for bit."""
    assert steady_rows(a) == steady_rows(b), message
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes(), message
    assert differences(last_checkpoint(a), last_checkpoint(b)) == [], message


def later_wins(words: list[str]) -> list[str]:
    """Each key once: a key given twice is refused. The last value stands at the key's first place."""
    kept: dict[str, str] = {}
    for word in words:
        kept[word.partition("=")[0] if "=" in word else word] = word
    return list(kept.values())

"""make fuzz: bad input, damaged files, kills, full disks, Ctrl-C and attacks; a small share of it is a test.

Every command is a fork of one warm process, in a folder of its own. It has to do its work, or to end with one line on
the standard error (exit status 2; 1 where a run failed) and nothing written. A fault is

    traceback   one was printed, or a signal ended the process
    silence     exit 0 without the work, or with another value than the one that was typed
    wait        more than 15 s of processor time, or a minute of waiting, without a word
    outside     a file outside of results and cache was written: the guard in every fork stops that, and tells
    words       no line or several, or control characters in them
    written     refused, and something is written
    differs     a run that was disturbed and goes on is not bit for bit the undisturbed one

FUZZ_SEED=7 draws other cases. A fault is printed with the words, or the damage, that show it again.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from fuzz.hostile import DAMAGE, JOBS, KEYS, commands
from hypothesis import HealthCheck, Phase, given, seed, settings
from support.program import RUN, TINY, assert_same_run, later_wins, write_text
from support.steady import BAR
from tqdm import tqdm

SEED = int(os.environ.get("FUZZ_SEED", "43"))
WORDS = [*TINY, "data.path=../text.txt", "results=../results"]
FAULTS = ("traceback", "silence", "wait", "outside", "words", "written", "differs")
PLACES = ("results", "out", "generate.out", "bench.out", "data.cache_dir", "name", "suite", "gpu.")
"""Keys that say where something is written."""
KERNELS = "cache/numba"
"""Of a lab: kernels that were compiled."""


@dataclasses.dataclass
class Case:
    """A command, and what is done to it.

    kind: the row of the table; words: with names of places in capitals; damage: done to the lab before; at: the file
    event (opened, renamed, removed, ...) of the process at which `signal` is sent to it; room: bytes that its files can
    have; again: the same command follows undisturbed; resumes: its run is then that of the template; patient: it may
    take long; judge: more to ask of how it ended.
    """

    kind: str
    words: tuple[str, ...]
    hostile: tuple[str, ...] = ()
    damage: Callable[[Path], object] | None = None
    told: str = ""
    at: int = 0
    signal: int = signal.SIGKILL
    room: int | None = None
    again: bool = False
    patient: bool = False
    judge: Callable[[Path, Ended], str | None] | None = None
    resumes: bool = False

    def __str__(self) -> str:
        disturbed = f"{signal.Signals(self.signal).name} at event {self.at}" if self.at else ""
        return " ".join(filter(None, [*self.words, *map(ascii, self.hostile), self.told, disturbed,
                                      f"files of {self.room} bytes" if self.room is not None else ""]))  # fmt: skip


@dataclasses.dataclass
class Ended:
    """How a process ended. status: None where it was ended here; spoken: it had said something by then."""

    status: int | None
    out: str
    err: str
    seconds: float
    guarded: list[str]
    lost: list[str]
    events: int


# A fork: the program's own entry with its words, its output in pipes, and a guard on files.


def warm() -> None:
    """Import in this process what jobs import; no thread is started, for a fork would lose it."""

    from experiments.jobs import all_jobs

    all_jobs()


class Fork:
    """A running command in a lab."""

    def __init__(self, lab: Path, case: Case, disturbed: bool, shared: Path) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.case, self.lab, self.disturbed, self.began = case, lab, disturbed, time.monotonic()
        self.before = files_of(lab)
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            status = 70
            try:
                status = self._run(ends, shared)
            finally:
                os._exit(status)
        self.pid, self.status, self.worked = pid, None, 0.0
        self.read, self.said = [read for read, _ in ends], [b"", b"", b""]
        for read, write in ends:
            os.close(write)
            os.set_blocking(read, False)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)

    def _run(self, ends: list[tuple[int, int]], shared: Path) -> int:
        os.setpgid(0, 0)
        lab, case = self.lab, self.case
        for (_, write), fd in zip(ends[:2], (1, 2), strict=True):
            fcntl.fcntl(write, 1031, 1 << 20)  # F_SETPIPE_SZ
            os.dup2(write, fd)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.dup2(os.open(lab / "FILE", os.O_RDONLY), 0)
        os.chdir(lab / "cwd")
        places = {"ARCHZOO_CACHE": "cache", "TMPDIR": "tmp", "HOME": "home", "NUMBA_CACHE_DIR": KERNELS}
        os.environ.update({key: str(lab / name) for key, name in places.items()})
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (memory() + (6 << 30), resource.RLIM_INFINITY))
        if self.disturbed and case.room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.room, resource.RLIM_INFINITY))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        events = guard([lab, shared], ends[2][1], case.at if self.disturbed else 0, case.signal)
        sys.argv = [RUN, *placed(case, lab)]
        from experiments import cli, front_desk

        compose = cli.compose

        def composed(*args: Any) -> Any:
            configs = compose(*args)
            typed = placed(case, lab)[-len(case.hostile) :] if case.hostile else ()
            lost = (line for config in configs for line in lost_values(config, typed))
            os.write(ends[2][1], "".join(f"lost {line}\n" for line in lost).encode())
            return configs

        cli.compose = composed
        try:
            status = front_desk.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 71
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os.write(ends[2][1], f"events {events()}\n".encode())
        return status

    def poll(self) -> Ended | None:
        """Read what it says; end it where it has worked long enough; returns how it ended."""
        for i, fd in enumerate(self.read):
            with contextlib.suppress(BlockingIOError):
                while part := os.read(fd, 1 << 16):
                    self.said[i] += part
        if self.status is None:
            done, status, used = os.wait4(self.pid, os.WNOHANG)
            if not done:
                seconds, silent = processor_seconds(self.pid), not (self.said[0] or self.said[1])
                if seconds > self.worked + 0.01:
                    self.worked, self.began = seconds, time.monotonic()
                if (
                    seconds > (15 if silent else 5) * (1 + 9 * (self.case.again or self.case.patient))
                    or time.monotonic() - self.began > 45
                ):
                    os.killpg(self.pid, signal.SIGKILL)
                    self.late = True
                return None
            self.status, self.seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
            return self.poll()
        for fd in self.read:
            os.close(fd)
        out, err, told = (part.decode(errors="replace") for part in self.said)
        lines = told.splitlines()
        return Ended(
            None if getattr(self, "late", False) else self.status, out, err, self.seconds,
            [x for x in lines if not x.startswith(("lost ", "events "))],
            [x[5:] for x in lines if x.startswith("lost ")],
            int(lines[-1].split()[1]) if lines and lines[-1].startswith("events ") else 0,
        )  # fmt: skip


def guard(roots: list[Path], tell: int, at: int, number: int) -> Callable[[], int]:
    """From now on nothing is written outside of the roots: that is told and refused. Event `at` brings a signal.

    Returns a function that says how many events there were.
    """
    allowed, count = tuple(f"{os.path.realpath(root)}/" for root in roots), 0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "open":
            path, _, flags = args
            if not isinstance(path, str | bytes) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            paths = (path,)
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown"):
            paths = args[:1]
        elif event in ("os.rename", "os.link", "os.symlink"):
            paths = args[:2] if event != "os.symlink" else args[1:2]
        else:
            return
        count += 1
        if count == at:
            os.kill(os.getpid(), number)
        for path in paths:
            name = os.fsdecode(path) if isinstance(path, str | bytes) else allowed[0]
            place = os.path.realpath(name)
            if event in ("os.rename", "os.remove", "os.link", "os.symlink"):  # of a link itself
                place = os.path.join(os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name))
            if (
                f"{place}/".startswith(allowed)
                or place == os.devnull
                or (event == "os.mkdir" and os.path.isdir(place))
            ):
                continue
            os.write(tell, f"{event} {place!a}\n".encode())
            raise PermissionError(13, "outside of the lab", place)

    sys.addaudithook(watch)
    return lambda: count


def placed(case: Case, lab: Path) -> list[str]:
    """The words of a command with the places of its lab, flags first."""
    run = next((lab / "results/default").glob("*/config.yaml"), lab / "no").parent
    plain = next((lab / "results/plain").glob("*/config.yaml"), lab / "no").parent
    record = next((lab / "results/default/.cells").glob("*.json"), lab / "no")
    names = {
        "RUNS": "../results/default",
        "RUN": f"../results/default/{run.name}",
        "RECORD": f"../results/default/.cells/{record.name}",
        "PLAIN": f"../results/plain/{plain.name}",
        "EXPORT": "../export",
        "NEW": "../new",
    }
    names |= {name: f"../{name}" for name in ("FILE", "FOLDER", "PIPE", "LINK", "LOOP")}
    words = [
        re.sub(r"\b[A-Z]{3,6}\b", lambda found: names.get(found[0], found[0]), word)
        for word in (*case.words, *case.hostile)
    ]
    flags = [word for word in words if word.startswith("--")]
    return [*flags, *later_wins([*WORDS, *(word for word in words if word not in flags)])]


TRUTHS = ("true", "false", "1", "0", "yes", "no", "on", "off", "y", "n", "t", "f")


def lost_values(config: Any, words: Iterable[str]) -> list[str]:
    """Words whose values the configuration has not: another number, truth of a number, another text."""
    from experiments.jobs import find_job

    found = []
    for word in words:
        key, _, text = word.partition("=")
        if key not in KEYS:
            continue
        if key in ("run", "runs", "dry") and key not in find_job(config.job).reads:
            found.append(f"{key} is not read by job={config.job}")
        kind, value = str(KEYS[key][0]), config
        for name in key.split("."):
            value = getattr(value, name)
        typed = text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text[:1] in ("'", '"') else text
        if isinstance(value, bool) and typed.lower() not in TRUTHS:
            found.append(f"{key}={typed!a} became {value}")
        elif type(value) in (int, float):
            with contextlib.suppress(ValueError):
                if float(typed) != value and not math.isnan(value):
                    found.append(f"{key}={typed!a} became {value}")
        elif (
            isinstance(value, str)
            and "str" in kind
            and value != typed
            and "$" not in typed
            and typed[:1] != "~"
        ):
            found.append(f"{key}={typed!a} became {value!a}")
    return found


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def processor_seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
        ) / os.sysconf("SC_CLK_TCK")
    return 0.0


# Labs: results of two runs (complete, stopped), what is made of them, text and tables, all by relative paths.


def files_of(lab: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of a lab but for its cache."""
    found = {}
    for folder, _, names in os.walk(lab):
        if folder != str(lab / "cache") and not folder.startswith(f"{lab / 'cache'}/"):
            found |= {f"{folder}/": (0, 0)}
            infos = {f"{folder}/{name}": os.lstat(f"{folder}/{name}") for name in names}
            found |= {place: (info.st_size, info.st_mtime_ns) for place, info in infos.items()}
    return {place.removeprefix(f"{lab}/"): info for place, info in found.items()}


class Fuzz:
    """Labs, and the cases that are run in them, one on each processor; the table of how they ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared, self.template = folder, folder / "shared", folder / "template"
        self.shared.mkdir(parents=True)
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "MPLCONFIGDIR": str(self.shared),
        }
        sys.dont_write_bytecode = True
        warm()
        self.counts: dict[str, Counter[str]] = {}
        self.faults: list[str] = []
        self.events: dict[str, int] = {}
        self.seconds = 0.0
        self._fill(self.template)

    def _fill(self, lab: Path) -> None:
        import pandas as pd

        for name in ("cwd", "tmp", "home", "FOLDER", "results", "cache"):
            (lab / name).mkdir(parents=True)
        (lab / "FILE").write_text("The \nA \n")
        write_text(lab / "text.txt")
        rows = pd.DataFrame({"text": [f"{i} the cat sat on the mat\n" * 9 for i in range(30)]})
        rows.to_parquet(lab / "table.parquet")
        rows.to_csv(lab / "table.csv")
        rows.to_json(lab / "table.jsonl", orient="records", lines=True)
        for words in (
            ("name=stopped", "trainer.pause_at=14"), ("trainer.probe_every=10",),
            ("job=probe", "runs=RUNS", "probe.extrapolate=1"), DISTURBED["compiling"], DISTURBED["preparing"],
            ("name=plain", "model=transformer", "trainer.max_steps=1"), ("job=export", "run=PLAIN", "out=EXPORT"),
            ("--multirun", "sweep.engine=list", "seed=0,1"),
        ):  # fmt: skip
            pauses = any(word.startswith(("trainer.pause", "sweep")) for word in words)
            self.done(lab, Case("template", words, told="pauses" * pauses, patient=True))
        for name in ("default", "compiled", "prepared"):
            shutil.copytree(lab / "results" / name, lab / "undisturbed", dirs_exist_ok=True)
        for made in ("results/compiled", "results/prepared", "cache/new"):
            shutil.rmtree(lab / made)
        self.specials(lab)

    def specials(self, lab: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(lab / "PIPE")
            (lab / "LINK").symlink_to(lab / "nowhere")
            (lab / "LOOP").symlink_to(lab / "LOOP")

    def done(self, lab: Path, case: Case) -> Ended:
        fork = Fork(lab, case, False, self.shared)
        while (ended := fork.poll()) is None:
            time.sleep(0.01)
        self.seconds += ended.seconds
        assert ended.status == 0 or case.told, ended
        return ended

    def events_of(self, name: str) -> int:
        """File events of a job, counted once; the first of them are imports that read and write nothing of ours."""
        if name not in self.events:
            lab = self._lab(0)
            without_kernels(lab)
            self.events[name] = self.done(lab, Case("template", DISTURBED[name], patient=True)).events
            shutil.rmtree(self._lab(0))
        return self.events[name]

    def _lab(self, number: int) -> Path:
        lab = self.folder / f"lab{number}"
        if not lab.exists():
            specials = shutil.ignore_patterns("PIPE", "LINK", "LOOP")
            shutil.copytree(self.template, lab, symlinks=True, ignore=specials)
            self.specials(lab)
        return lab

    def run(self, cases: list[Case]) -> None:
        """Run the cases, and count how they ended."""
        waiting, workers = list(enumerate(cases)), len(os.sched_getaffinity(0))
        running: dict[int, Fork] = {}
        bar = tqdm(total=len(cases), desc=cases[0].kind if cases else "", mininterval=5, dynamic_ncols=True)
        while waiting or running:
            for worker in range(workers):
                if worker not in running and waiting:
                    _, case = waiting.pop(0)
                    lab = self._lab(worker)
                    if case.damage is not None:
                        case.damage(lab)
                    running[worker] = Fork(lab, case, True, self.shared)
            for worker, fork in list(running.items()):
                if (ended := fork.poll()) is None:
                    continue
                del running[worker]
                self.seconds += ended.seconds
                if fork.disturbed and fork.case.again:
                    self.count(fork, ended)
                    running[worker] = Fork(fork.lab, fork.case, False, self.shared)
                    continue
                self.count(fork, ended)
                bar.update()
                if fork.case.damage or fork.case.again or files_of(fork.lab) != fork.before:
                    shutil.rmtree(fork.lab)  # a folder may be in the place of a file
            time.sleep(0.005)
        bar.close()

    def count(self, fork: Fork, ended: Ended) -> None:
        """Add the end of a case to the table, and its faults to the list."""
        found, row = faults_of(fork, ended), self.counts.setdefault(fork.case.kind, Counter())
        row["cases"] += fork.disturbed
        ways = {0: "done", 2: "refused", 1: "failed", None: "at work"}
        row[ways.get(ended.status, "ended")] += fork.disturbed
        for fault, why in found:
            row[fault] += 1
            self.faults.append(f"{fault}: {fork.case.kind}: {fork.case}: {why}")
            print(self.faults[-1], flush=True)

    def table(self) -> str:
        columns = ("cases", "done", "refused", "failed", "at work", "ended", *FAULTS)
        lines = [f"{'':<16}" + "".join(f"{name:>10}" for name in columns)]
        total: Counter[str] = sum(self.counts.values(), Counter())
        for kind, row in [*self.counts.items(), ("all", total)]:
            lines.append(f"{kind:<16}" + "".join(f"{row[name]:>10}" for name in columns))
        return "\n".join(lines)


# What is asked of an end.


def faults_of(fork: Fork, ended: Ended) -> list[tuple[str, str]]:
    """(fault, why) for all that is wrong with how a command ended."""
    case, found, lab = fork.case, [], fork.lab
    text = ended.out + ended.err
    lines = [line for line in re.split("[\n\r]", ended.err) if line.strip() and not BAR.search(line)]
    errors = [line for line in lines if line.startswith("error: ")]
    others = [line for line in lines if not line.startswith(("error: ", "notice: ", "warning: "))]
    killed = fork.disturbed and case.at and ended.status == -case.signal
    if "Traceback (most recent call last)" in text or ended.status in (70, 71):
        found.append(("traceback", ended.err.strip().splitlines()[-1] if ended.err.strip() else "?"))
    elif ended.status is not None and ended.status < 0 and not killed:
        found.append(("traceback", f"signal {-ended.status}"))
    if ended.status is None and not text:
        found.append(("wait", f"{ended.seconds:.0f} s"))
    found += [("outside", line) for line in ended.guarded]
    control = {c for c in text.replace("\x1b[A", "") if unicodedata.category(c) == "Cc" and c not in "\n\t\r"}
    found += [("words", f"control characters {control!a}")] * bool(control)
    interrupted = ended.status in (130, 143) and fork.disturbed and case.signal == signal.SIGINT
    if ended.status in (1, 2) or interrupted:
        if len(errors) != 1 or (others and ended.status == 2):
            found.append(("words", f"status {ended.status}: {ended.err[-300:]!a}"))
    elif ended.status not in (0, None) and not killed and ended.status not in (70, 71) and ended.status > 0:
        found.append(("words", f"status {ended.status}: {ended.err[-300:]!a}"))
    if ended.status == 1 and re.search("MemoryError|allocate memory", ended.err):
        found.append(("written", "a run began that no memory holds"))
    if case.resumes and not case.again and ended.status == 1 and "failure.json" in ended.err:
        found.append(("differs", f"failed where it should go back or refuse: {ended.err[-200:]}"))
    after = files_of(lab)
    different = {place for place, _ in after.items() ^ fork.before.items()}
    changed = {place for place in different if not place.endswith("/")}
    left = [place for place in changed if not place.startswith("results/") and place in after]
    elsewhere = any(word.startswith(PLACES) for word in (*case.words, *case.hostile))
    if ended.status == 2 and changed and case.damage is None and not case.at and case.room is None:
        found.append(("written", ", ".join(sorted(changed)[:3])))
    elif left and not killed and ended.status is not None and not elsewhere:
        found.append(("outside", ", ".join(sorted(left)[:3])))
    if ended.status == 0:
        found += [("silence", line) for line in ended.lost]
        if not ended.out.strip():
            found.append(("silence", "exit 0 without a word"))
    if case.judge is not None and (why := case.judge(lab, ended)):
        found.append(("silence", why))
    if case.resumes and (not fork.disturbed if case.again else ended.status == 0):
        found += differences(lab, case.words[0].removeprefix("name="), ended)
    return found


def differences(lab: Path, name: str, ended: Ended) -> list[tuple[str, str]]:
    """What the run of a lab is in which it went on, beside the undisturbed one."""
    if ended.status != 0:
        return [("differs", f"status {ended.status}: {ended.err[-200:]}")]
    try:
        (run,) = (path.parent for path in (lab / "results" / name).glob("*/summary.json"))
        assert_same_run(run, lab / "undisturbed" / run.name)
    except Exception as error:
        return [("differs", f"{type(error).__name__}: {str(error)[:200]}")]
    return []


# Campaigns.


DRAWS = settings(
    database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def drawn(strategy: Any, number: int, start: int) -> list[Any]:
    """So many examples of a strategy."""
    found: list[Any] = []

    @seed(start)
    @settings(DRAWS, max_examples=number)
    @given(strategy)
    def keep(example: Any) -> None:
        found.append(example)

    keep()
    return found


def bad_input(number: int, start: int) -> list[Case]:
    return [Case(job, words, hostile) for job, words, hostile in drawn(commands(), number, start)]


REFUSED = {
    "train": (
        "trainer.threads=1000000", "data.batch_size=1000000000000", "model.d_model=1000000000", "data.seq_len=100000",
        "trainer.max_steps=100000000000000000000", "model.d_model=32768 model.depth=512", "model.backend=triton",
        "device=foo", "trainer.precision=foo", "trainer.threads=0", "data.vocab_size=-5", "data.path=PIPE",
        "data=mqar data.tasks.mqar.power=2153", "model.pattern=P model.mixers.path_fox.householder=010",
        "results=FILE", "results=${foo}", "data.cache_dir=FILE", "name=_x", "model.residual=mhc", "trainer.batch=3",
        "--foo", "~model", 'name="a\tb"', "blocks=[../nowhere]", "start.vocab_size=-5",
        "data=regression data.tasks.regression.dimensions=21407",
        "data=entity_tracking data.tasks.entity_tracking.boxes=99999",
    ),
    "sweep": ("seed=range(0,10000000)", "results=FILE", "name=a,_x", "optim.lr=", "trainer.threads=1,2"),
    "generate": ("generate.tokens=100000000000000000000000", "trainer.threads=0", "generate.out=PIPE", "device=foo"),
    "evaluate": ("evaluate.stride=0", "trainer.threads=0", "device=foo"),
    "probe": ("sweep.workers=0", "probe.windows=0", "run=LINK"), "report": ("sweep.workers=0", "runs=LOOP"),
    "cost": ("cost.lengths=[1000000000000000000000]", "cost.lengths=[]", "model.pattern=ZZ"),
    "measure": ("bench.budget_s=nan", "bench.out=FILE/below"), "publish": ("figures=[nothing]", "source="),
    "cell": ("run=FILE", "run=PIPE"), "import": ("source=FILE", "source=FOLDER"),
}  # fmt: skip
"""What was once taken, or ended in a traceback, a wait or an empty answer: by job, the words that are refused."""


def known(number: int) -> list[Case]:
    cases = [(job, words.split(" ")) for job, each in REFUSED.items() for words in each]
    return [Case("known", JOBS[job], tuple(words), judge=refused) for job, words in cases[:number]]


def refused(lab: Path, ended: Ended) -> str | None:
    return None if ended.status == 2 else f"not refused, status {ended.status}: {ended.err[-200:]!a}"


READERS = {
    "results/default/": ("evaluate", "generate", "probe", "report", "publish", "export", "again"),
    "results/stopped/": ("resume",),
    "cache/": ("train", "evaluate"),
    "export/": ("import", "start"),
    "table.": ("table",),
    "text.txt": ("train",),
    "results/default/.cells/": ("cell",),
}
MORE = {
    "again": ("trainer.probe_every=10",), "resume": ("name=stopped",), "start": ("start.weights=EXPORT", "dry=true"),
    **{name: JOBS[name] for name in ("evaluate", "generate", "probe", "report", "publish")},
    **{name: JOBS[name] for name in ("export", "train", "import", "cell")},
}  # fmt: skip


def damaged(template: Path, number: int, start: int) -> list[Case]:
    """A file of a lab is damaged, and a job reads it; first the checkpoint that a run goes on from, in every way."""
    draw, cases = random.Random(start), []
    files = [p for p in files_of_all(template) if not p.startswith(("undisturbed", "home", "tmp", "cwd"))]
    groups: dict[str, list[str]] = {prefix: [] for prefix in READERS}
    for file in files:
        if prefixes := [prefix for prefix in READERS if file.startswith(prefix)]:
            groups[max(prefixes, key=len)].append(file)
    for i in range(number):
        often = [p for p in READERS if groups[p] for _ in range(3 if p.startswith("results/") else 1)]
        prefix = draw.choice(often)
        file, how, job = (draw.choice(found) for found in (groups[prefix], list(DAMAGE), READERS[prefix]))
        own = draw.random()
        if i < len(DAMAGE):
            file, how, job = max(f for f in files if f.endswith(".ckpt")), list(DAMAGE)[i], "resume"
        words = ("trainer.max_steps=2", f"data.path=../{file}") if job == "table" else MORE[job]

        def damage(lab: Path, file: str = file, how: str = how, own: float = own) -> None:
            DAMAGE[how](lab / file, random.Random(own))

        told = f"[{how} {file} {own}] {job}"
        cases.append(Case(f"damaged {how}", words, damage=damage, told=told, resumes=job == "resume"))
    return cases


def files_of_all(lab: Path) -> list[str]:
    files = (p for p in lab.rglob("*") if p.is_file() and p.stat().st_size and "catalogue" not in p.name)
    return sorted(str(p.relative_to(lab)) for p in files)


DISTURBED = {
    "training": ("name=new", "trainer.probe_every=7"),
    "preparing": (
        "name=prepared",
        "data.cache_dir=../cache/new",
        "data.tokenizer=bpe",
        "data.vocab_size=300",
    ),
    "compiling": ("name=compiled", "model=orthgsa"),
    "stopped": ("name=stopped",),
    "probing": (*JOBS["probe"], "probe.windows=2"),
    "publishing": JOBS["publish"],
}


def stopped(fuzz: Fuzz, kind: str, number: int, start: int, **how: Any) -> list[Case]:
    """Jobs that a signal ends at a random file event, or whose files cannot grow, and that go on afterwards."""
    draw, cases = random.Random(start), []
    for i in range(number):
        name, words = list(DISTURBED.items())[i % len(DISTURBED)]
        if "room" in how:
            at = {"room": int(10 ** draw.uniform(0, 5.3))}
        else:
            at = {"at": draw.randrange(1, fuzz.events_of(name) + 1)}
        same = name in ("training", "preparing", "compiling", "stopped")
        cold = without_kernels if name == "compiling" else None
        told = {"damage": cold, "again": True, "resumes": same, "judge": ends}
        cases.append(Case(f"{kind} {name}", words, **{**told, **how, **at}))
    return cases


def without_kernels(lab: Path) -> None:
    """Remove the compiled kernels: the run compiles them, and the one that resumes it finds some of them."""
    shutil.rmtree(lab / KERNELS)


def ends(lab: Path, ended: Ended) -> str | None:
    """What is left half-done where a job ended well; temporary files count."""
    partial = [path.name for path in (lab / "results").rglob("*") if "partial" in path.name]
    return f"left {partial[0]}" if partial and ended.status == 0 else None


STRINGS = (
    *("=1+1", "@SUM(A1)", "+cmd|x", "<script>alert(1)</script>", "\x1b]0;x\x07", "$\\frac$", "a|b"),
    *("../../up", "\u202e"),
)
LINKED = ("", "probes", "checkpoints", "summary.json", "probes/measures.parquet", "config.yaml", "model.safetensors",
          "../published", "../../published/default", "../report", ".lock", "metrics.csv", "identity.json")  # fmt: skip


def attacks(number: int, start: int) -> list[Case]:
    """A stranger's run: links out of its folder, and texts that a page, a spreadsheet or a terminal would obey."""
    draw, cases = random.Random(start), []
    for i in range(number):
        job = draw.choice(("publish", "report", "probe", "export", "evaluate", "again", "cell"))
        own = draw.choice(LINKED if i % 2 else STRINGS)

        def damage(lab: Path, own: str = own, linked: bool = bool(i % 2)) -> None:
            run = next(lab.glob("results/default/*/summary.json")).parent
            victim = lab.parent / "victim"
            victim.mkdir(exist_ok=True)
            if not linked:
                summary = json.loads((run / "summary.json").read_text())
                summary.update(name=own, experiment=own, command=own)
                summary["model"].update(preset=own, pattern=own)
                summary["data"].update(name=own, train=own)
                (run / "summary.json").write_text(json.dumps(summary))
                return
            place = Path(os.path.normpath(run / own))
            place.parent.mkdir(exist_ok=True)
            if place.is_dir():
                shutil.copytree(place, victim / own, dirs_exist_ok=True)
                shutil.rmtree(place)
            elif place.exists():
                shutil.copy(place, victim)
                place.unlink()
            place.symlink_to(victim / (own if (victim / own).is_dir() else place.name))

        how = {"told": f"[{own!a}] {job}", "patient": True, "judge": harmless}
        cases.append(Case("attack", MORE[job], damage=damage, **how))
    return cases


def harmless(lab: Path, ended: Ended) -> str | None:
    """What a page, a spreadsheet or a terminal would obey in what was written."""
    for page in (lab / "results").rglob("*.html"):
        if "<script>alert(1)" in page.read_text():
            return f"{page.name} has the script"
    for table in (lab / "results").rglob("*.csv"):
        for cell in (cell for row in csv.reader(io.StringIO(table.read_text())) for cell in row):
            with contextlib.suppress(ValueError):
                cell = "" if float(cell) else "0"
            if cell[:1] in tuple("=@+-") and cell.strip("-"):
                return f"{table.name} has the cell {cell!a}"
    return None


def campaign(folder: Path, share: float, start: int) -> Fuzz:
    """All kinds of cases; share: of the whole number of each."""
    fuzz = Fuzz(folder)

    bad, broken, killed, full, interrupted, hostile, old = (
        max(1, round(n * share)) for n in (2000, 240, 100, 50, 24, 40, 99)
    )
    fuzz.run(known(old))
    fuzz.run(bad_input(bad, start))
    fuzz.run(damaged(fuzz.template, broken, start))
    fuzz.run(stopped(fuzz, "killed", killed, start))
    fuzz.run(stopped(fuzz, "full disk", full, start, room=0))
    fuzz.run(stopped(fuzz, "Ctrl-C", interrupted, start, signal=signal.SIGINT))
    fuzz.run(attacks(hostile, start))
    return fuzz


@pytest.mark.slow
def test_a_small_share_of_it(tmp_path: Path):
    """In a process of its own, whose forks are of a process without threads."""
    place = {"TMPDIR": str(tmp_path), "FUZZ_SHARE": "0.005"}
    done = subprocess.run(
        [sys.executable, __file__], env={**os.environ, **place}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cases = re.search(r"^all +(\d+)", done.stdout, re.MULTILINE)
    assert int(cases[1]) > 14, done.stdout


def main() -> int:
    """Run the whole; returns 1 where there was a fault."""
    print(f"seed {SEED} (FUZZ_SEED=N draws other cases)", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        fuzz = campaign(Path(folder), float(os.environ.get("FUZZ_SHARE", "1")), SEED)
    print(f"\n{fuzz.table()}")
    print(f"{time.monotonic() - began:.0f} s, {fuzz.seconds:.0f} s of processor time")
    return bool(fuzz.faults)


if __name__ == "__main__":
    sys.exit(main())

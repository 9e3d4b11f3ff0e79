"""The stage of job=gpu for a machine that is at hand for minutes: pieces of work by priority, from a plan file.

The plan is a TOML file (gpu.plan; null: short.toml beside this one, which explains its keys). Every piece runs in a
process of its own, so that one that breaks the GPU's context stops no other. Tables grow as the work goes on, and
`short.jsonl` by one line for each piece that was tried; `short.tar.gz` beside the folder holds all of it so far: one
file to bring home. The next call goes on with what is not done. A rehearsal leaves out profilers (`under`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.gpu.settings import Settings
from experiments.system import machine, paths
from zoo.errors import UserError

PLAN = Path(__file__).with_name("short.toml")
REHEARSAL = ("device=cpu", "size=smoke", "bench.lengths=[16]", "bench.repeats=1", "bench.tokens=16")
"""Words after a piece's own: the same suites and cases, small and on any machine."""
DONE = (0, 5)  # 5: pytest found no test, as of GPU tests on a machine without one


@dataclass(frozen=True)
class Work:
    """A piece of work: a bench, or files of tests, within a limit of seconds."""

    name: str
    priority: float
    seconds: float
    bench: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    under: tuple[str, ...] = ()

    def command(self, settings: Settings, folder: Path) -> list[str]:
        """The command, whose tables go into `folder`."""
        python, *entry = paths.program()
        under = () if settings.rehearse else self.under
        if self.tests:
            how = ["--collect-only"] if settings.rehearse else ["-m", "gpu", "-n", str(settings.workers)]
            words = [python, "-u", "-m", "pytest", "-q", "-x", *self.tests, *how]
        else:
            usual = (f"bench.out={folder}", f"bench.budget_s={0.8 * self.seconds:g}")
            given = (*usual, *self.bench, *(REHEARSAL if settings.rehearse else ()))
            # A key that is there twice would be refused: the last one counts.
            words = [
                python,
                "-u",
                *entry,
                "job=bench",
                *{word.partition("=")[0]: word for word in given}.values(),
            ]
        return [word.replace("{folder}", str(folder)) for word in (*under, *words)]


def read_plan(path: Path) -> list[Work]:
    """The pieces of work in a plan file, most urgent first. Raises UserError for a file that is no plan."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["work"]
        plan = [
            Work(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}) for entry in entries
        ]
        for work in plan:
            if bool(work.bench) == bool(work.tests) or not work.seconds > 0:
                raise ValueError(f"{work.name!r} needs seconds above 0 and either bench or tests")
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = f"no [[work]]: {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"gpu.plan={path} is not a plan ({reason}); see {PLAN} for an example") from error
    return sorted(plan, key=lambda work: work.priority)


def run_short(settings: Settings) -> bool:
    """Do the pieces that are left and fit into the time; returns whether all of the plan are done.

    Raises UserError at the end for pieces that failed.
    """
    plan = read_plan(Path(settings.config.gpu.plan or PLAN))
    folder = (settings.folder / "short").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "short.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    done = {line["work"] for line in lines if line["outcome"] == "done"}
    deadline = time.monotonic() + settings.seconds
    failed = []
    for work in plan:
        left = deadline - time.monotonic()
        if work.name in done:
            print(f"{work.name}: done before")
        elif work.seconds > left:
            print(f"{work.name}: skipped, needs {work.seconds:g} s and {max(left, 0):.0f} s are left")
        else:
            line = _do(work, settings, folder)
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            shutil.make_archive(str(folder), "gztar", folder)
            print(f"{work.name}: {line['outcome']} after {line['seconds']} s", flush=True)
            done |= {work.name} if line["outcome"] == "done" else set()
            failed += [work.name] if line["outcome"].startswith("failed") else []
    if failed:
        raise UserError(f"failed: {'; '.join(failed)}; {log} has the last lines of their output")
    return all(work.name in done for work in plan)


def _do(work: Work, settings: Settings, folder: Path) -> dict[str, Any]:
    """Do a piece; returns its line of the log."""
    line = {"work": work.name, "machine": settings.device_name, "commit": (machine.commit()[0] or "")[:12]}
    began = time.monotonic()
    if work.under and not settings.rehearse and shutil.which(work.under[0]) is None:
        outcome, tail = f"left out: {work.under[0]} is not installed", []
    else:
        with (folder / "output.txt").open("w+") as output:
            try:
                status = subprocess.run(
                    work.command(settings, folder),
                    cwd=paths.ROOT,
                    timeout=work.seconds,
                    stdout=output,
                    stderr=output,
                ).returncode
                outcome = "done" if status in DONE[: 1 + bool(work.tests)] else f"failed with status {status}"
            except subprocess.TimeoutExpired:
                outcome = f"stopped at its limit of {work.seconds:g} s"
            output.seek(0)
            tail = output.read().splitlines()[-20:]
    return {**line, "outcome": outcome, "seconds": round(time.monotonic() - began, 1), "tail": tail}

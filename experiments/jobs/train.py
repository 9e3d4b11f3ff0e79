"""job=train: one run, from a checked plan to a complete run folder."""

from __future__ import annotations

import errno

from experiments import interrupts
from experiments.plan import Plan, plan
from experiments.progress import Bar, Sink
from experiments.runs import SUMMARY, RunFailed
from experiments.schema import Config
from zoo.errors import UserError


def run(config: Config) -> None:
    """Train, unless the run is complete already; print its test metrics."""
    planned = plan(config)
    bar = Bar(planned.title, config.trainer.progress)
    try:
        if not execute(planned, bar):
            print(f"already complete: {planned.folder.path}")
    finally:
        bar.close()
    print(_report(planned))


def execute(planned: Plan, sink: Sink, workers: int = 1) -> bool:
    """Bring a run to completion, going on from its last checkpoint; False if there was nothing to do.

    workers: cells of one sweep that train at the same time, this one included.
    A failure is recorded in the run folder and raised as RunFailed, except a pause, which is no failure.
    """
    folder = planned.folder
    if folder.complete:
        return False
    with folder.locked():
        if folder.complete:  # another process finished it while this one waited
            return False
        with interrupts.leaving():
            from experiments.callbacks import Paused, discard
            from experiments.training import train

        try:
            folder.begin(planned.yaml(), planned.identity)
            folder.finish(train(planned, sink, workers))
            if not planned.config.trainer.keep_checkpoints:
                discard(folder.checkpoints)
        except Paused as pause:
            raise RunFailed(f"{planned.title}: {pause}") from pause
        except UserError:
            raise
        except Exception as error:
            folder.fail(error)
            raise _explained(planned, error) from error
    return True


def _explained(planned: Plan, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(
            f"{planned.title}: the disk is full ({error}). Earlier files are intact: "
            "free some space and give the same command again; it goes on from the last checkpoint"
        )
    record = f" (see {planned.folder.path}/failure.json)" if planned.folder.failed else ""
    return RunFailed(f"{planned.title}: {type(error).__name__}: {error}{record}")


def _report(planned: Plan) -> str:
    summary = planned.folder.summary()
    try:
        lines = [f"{planned.title}: {summary['parameters']:,} parameters, best step {summary['best_step']}"]
        lines += [
            metrics_line(name, m, summary["data"].get(name, "")) for name, m in summary["metrics"].items()
        ]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise planned.folder.damaged(SUMMARY, error) from error
    return "\n".join([*lines, f"run folder: {planned.folder.path}"])


def metrics_line(name: str, m: dict[str, float], text: str) -> str:
    """All four metrics of a split on one line."""
    return (
        f"{name}: loss {m['loss']:.4f} nats/token, perplexity {m['perplexity']:.2f}, word perplexity "
        f"{m['word_perplexity']:.2f}, {m['bits_per_byte']:.4f} bits/byte "
        f"({m['tokens']:,} tokens, stride {m['stride']}) {f'· {text}' if text else ''}".rstrip()
    )

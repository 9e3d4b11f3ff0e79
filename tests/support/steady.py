"""What makes outputs the same on every machine: pretended facts and times, masked paths, weights from a formula."""

import contextlib
import dataclasses
import io
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from experiments.configuration.schema import Config
from experiments.planning import plan
from support.recorded import flat

FACTS = {"host_cpu": "a processor", "cores": 2, "memory_bytes": 2**33, "gpu": None, "threads": 1}
FACTS |= {"capability": "instructions", "platform": "a system"}


MOVES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # of a cursor
BAR = re.compile(r"\d+%\||\[\d\d:\d\d|s/it|it/s")


@contextlib.contextmanager
def pretended_machine(torch_version: str | None = "2.torch") -> Iterator[None]:
    """While inside, tables name a machine, a commit and a version of torch (None: its own) that are nobody's."""

    def describe(_device: Any) -> dict[str, Any]:
        return dict(FACTS)

    commit = mock.Mock(return_value=("0123456789abcdef", False))
    with (
        mock.patch("experiments.system.machine.describe", describe),
        mock.patch("experiments.system.machine.commit", commit),
        mock.patch.object(torch, "__version__", torch_version or torch.__version__),
    ):
        yield


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """While inside, what is printed is kept, "| " before it and on the standard error "! "."""
    lines: list[str] = []
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield lines
    finally:
        lines += [f"| {line}" for line in out.getvalue().splitlines()]
        # Without progress bars, whose lines come as the clock has it.
        words = [line for line in err.getvalue().splitlines() if not BAR.search(line)]
        lines += [f"! {line}" for line in words if MOVES.sub("", line).strip()]


def forget_texts() -> None:
    """What this process remembers of texts by their paths: another test may have had another one at the same place."""
    plan.check_data.forget()
    plan.fingerprint.forget()


def masked(lines: Iterator[str] | list[str], places: Mapping[str, str]) -> list[str]:
    """Lines without this run's places: text -> the word to stand for it, the longest first."""
    found = []
    for line in lines:
        for text, word in sorted(places.items(), key=lambda pair: -len(pair[0])):
            line = line.replace(text, word)
        found.append(re.sub(r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d+", "<time>", line))
    return found


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    """The kind and words of what a call raises; what it returns where it raises nothing."""
    try:
        found = call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"taken: {found}"


def changed(config: Any, **keys: Any) -> Any:
    """A copy of a configuration with other values at dotted keys, written with two underscores for a point."""
    for key, value in keys.items():
        config = _with(config, key.split("__"), value)
    return config


def each(**keys: object) -> list[dict[str, object]]:
    """Changes of one key each; a tuple: one change for each of its values."""
    return [
        {key: value}
        for key, values in keys.items()
        for value in (values if isinstance(values, tuple) else (values,))
    ]


def _with(node: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    inner = _with(getattr(node, first), rest, value) if rest else value
    return dataclasses.replace(node, **{first: inner})


def leaves(value: Any) -> dict[str, str]:
    """Dotted key -> value in words, of a nested configuration."""
    found = {}
    for line in flat(value):
        key, _, words = line.partition(": ")
        found[key] = words
    return found


def differences(value: Any, usual: Mapping[str, str]) -> list[str]:
    """`key: value` of what is not as usual."""
    own = leaves(value)
    gone = [f"  {key}: not there" for key in usual if key not in own]
    return [f"  {key}: {words}" for key, words in own.items() if usual.get(key) != words] + gone


def set_by_formula(model: nn.Module, size: float = 0.2) -> nn.Module:
    """The model with every parameter a sine of its place, so that no generator's stream decides a number."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), 1):
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            values = torch.sin(0.37 * number + 1.7 * places + 0.01 * places.square())
            parameter.copy_((size * values).view(parameter.shape))
    return model


def tiny_config(**keys: Any) -> Config:
    """A configuration of a model of width 16 with two layers, on bytes."""
    config = changed(Config(), model__depth=2, model__d_model=16, model__n_heads=2, device="cpu")
    config = changed(config, data__tokenizer="bytes", data__vocab_size=300, data__seq_len=32)
    return changed(config, **{"data__batch_size": 2, "trainer__progress": False, **keys})


def tiny_study(results: Path, **keys: Any) -> Config:
    """A comparison of such models on associative recall: the experiment "study", at three rates."""
    config = tiny_config(data__name="mqar", data__tokenizer="bpe", data__vocab_size=4096, data__seq_len=128)
    config = changed(config, compare__rates=[1e-3, 3e-3, 1e-2], trainer__max_steps=40, trainer__val_every=5)
    return changed(config, **{"results": str(results), "name": "study", **keys})


def cells(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a table, one a line, only the columns that hold something."""
    return ["; ".join(f"{k}={_word(v)}" for k, v in row.items() if v not in ("", None)) for row in rows]


def _word(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return next(flat(value, "x")).removeprefix("x: ")
    return str(value)


def files_in(folder: Path) -> list[str]:
    """Paths of all files below a folder, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

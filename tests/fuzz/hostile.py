"""What is thrown at the program: words for any key of any job, and damage to any file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import random
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from experiments.configuration.schema import Config
from zoo import registry

# Keys and their values.


def _fields(node: type, prefix: str = "") -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Dotted key, type and limits of every option of the schema, blocks' and tasks' too."""
    hints = typing.get_type_hints(node)
    for field in dataclasses.fields(node):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _fields(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hints[field.name], dict(field.metadata)


KEYS = {key: (kind, limits) for key, kind, limits in _fields(Config) if key not in ("job", "blocks")}
"""All keys; `blocks` is read once a process, before any fork here."""
_BLOCKS = [key for key in KEYS if key.startswith(("model.", "data.tasks."))]
_REST = [key for key in KEYS if key not in _BLOCKS]

NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "-0.0", "0.5", "1.5", "1e-300", "1e300", "1e999", "nan", "inf", "-inf"),
    *map(str, (2**31, 2**53 + 1, 2**63, -(2**63))),
    *("9" * 400, f"0.{'0' * 400}1", "1_000", "0x10", "1e3"),
    *("true", "null", "on", "١", "--1", "1000000", "100000", str(10**12)),
)
TEXTS = (
    *("", " ", "''", "null", "true", "~", ".", "..", "../up", "a/b", "/", "/nope", "~/x", "~nobody/x", "_x"),
    *("-x", "a b", "é", "\u202e", "\ud8ff", "\ud83d\ude00", "\x1b[31m", "\t", "\n", "a\nb", "\x7f"),
    *("x" * 300, "x" * 5000),
    *("=1+1", "@x", "$x^2$", "$HOME", "${foo}", "${seed}", "${oc.env:NOWHERE}", "???", "%s", "{0}", "*"),
    *("[a", "[]"),
    *("{}", "{a:1}", "a,b", "[a,b]", "'", '"', "\\", "a=b", "`x`", "#x", "--help", "nan", "1e3", "010"),
    "FILE/below",
    *("FILE", "FOLDER", "PIPE", "LINK", "LOOP", "RUN", "EXPORT", "1", "best", "last", "auto", "none"),
    "F*9999",
    *("(" * 99 + "F" + ")" * 99, "F*", "(F", "GSCLKPMON", "swiglu+moe", "params", "flops", "state+params"),
)


@st.composite
def _values(draw: st.DrawFn, key: str) -> str:
    """A value as typed: at a limit and beside it, of the key's type or of none, known as a trap or made up."""
    kind, limits = KEYS[key]
    bounds = [b for b in (limits.get(x) for x in ("least", "most", "above", "below")) if b is not None]
    near = [str(b + step) for b in bounds for step in (-1, 0, 1)]
    choices = limits.get("choices")
    near += [str(c) for c in (choices() if callable(choices) else choices or ())]
    pools = [st.sampled_from(near)] * (2 if near else 0)
    pools += [st.sampled_from(NUMBERS), st.sampled_from(TEXTS)] * (1 if "str" in str(kind) else 2)
    pools += [st.sampled_from(TEXTS)] * ("str" in str(kind))
    made_up = st.text(st.characters(exclude_characters="\0"), max_size=8)
    pools += [st.integers().map(str), st.floats().map(str), made_up]
    value = draw(st.one_of(pools))
    if "list" in str(kind):
        more = draw(st.sampled_from(("[{}]", "[{}]", "[{0},{0}]", "{}", "[[{}]]", "[{},1]")))
        value = more.format(value) if "{" not in value else value
    elif "str" in str(kind) and draw(st.booleans()):  # so that Hydra's grammar lets it through
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return value


def _used(key: str) -> list[str]:
    """Words by which the block or task is used whose option this is."""
    parts = key.split(".")
    if key.startswith("data.tasks."):
        return [f"data={parts[2]}"]
    if key.startswith("model.mixers."):
        return [f"model.pattern={registry.get('mixer', parts[2]).letter}"]
    return [f"model.{parts[1]}.name={parts[2]}"] if key.count(".") == 3 else []


JOBS: dict[str, tuple[str, ...]] = {
    "train": ("trainer.max_steps=2", "trainer.progress=true", "evaluate.windows=2"),
    "dry": ("dry=true",),
    "cost": ("job=cost", "cost.lengths=[32]"),
    "generate": ("job=generate", "run=RUN", "generate.tokens=3"),
    "evaluate": ("job=evaluate", "run=RUN", "trainer.progress=true"),
    "probe": ("job=probe", "run=RUN", "probe.extrapolate=1", "probe.prompts=[]", "probe.windows=1"),
    "report": ("job=report", "runs=RUNS", "sweep.workers=1"),
    "publish": ("job=publish", "runs=RUNS", "question=why", "figures=[loss_against_tokens]", "source=mine"),
    "export": ("job=export", "run=RUN", "out=NEW"),
    "import": ("job=import", "from=EXPORT"),
    "cell": ("job=cell", "run=RECORD"),
    "list": ("job=list",),
    "headlines": ("job=headlines",),
    "compare": ("job=compare", "dry=true"),
    "sweep": ("--multirun", "dry=true", "seed=0,1"),
    "papers": ("job=papers", "+experiment=papers", "headline=s3", "dry=true"),
    "bench": ("job=bench", "suite=kernels", "dry=true"),
    "measure": ("job=bench", "suite=harness", "bench.pairs=1", "bench.steps=1"),
    "gpu": ("job=gpu",),
    "verdict": ("job=verdict", "block=kda"),
    "claims": ("job=claims", "claims=[1]"),
    "lm_eval": ("job=lm_eval", "run=RUN", "lm_eval.tasks=[nothing_of_this_name]"),
}
"""Every job by its shortest work; `dry`, `sweep` and `measure` are others of jobs that are there."""
_OWN = {"train": 12, "cost": 6, "dry": 5, "evaluate": 4, "generate": 4, "probe": 3}
_OWN |= dict.fromkeys(("sweep", "list", "export"), 2)


def _chosen(token: int, keys: list[str]) -> str:
    """One of the keys, mostly the same when others come or go: a new option does not change what a seed draws."""
    return min(keys, key=lambda key: hashlib.sha256(f"{token} {key}".encode()).digest())


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A job, its words, and hostile ones."""
    job = draw(st.sampled_from([name for name in JOBS for _ in range(_OWN.get(name, 1))]))
    own = [key for key in _REST if key.split(".")[0] == job]
    keys = [_chosen(draw(st.integers(0, 2**32)), draw(st.sampled_from([_BLOCKS, _REST, own or _REST])))]
    if draw(st.integers(0, 3)) == 0:
        keys.append(_chosen(draw(st.integers(0, 2**32)), _REST))
    used = [word for key in keys for word in _used(key)] if job in ("train", "dry", "cost", "sweep") else []
    return job, (*JOBS[job], *used), tuple(f"{key}={draw(_values(key))}" for key in dict.fromkeys(keys))


# Damage to files. Every kind takes the file and a source of random numbers; what it makes is no larger than a megabyte.


def _bit(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _noise(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content) + 1)
    content[at : at + 16] = draw.randbytes(16)
    path.write_bytes(content)


def _torn(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def _other(path: Path, draw: random.Random) -> None:
    found = (b"", b"\0" * 99, b"[]", b"{}", b"null", b'"x"', b"[" * 99_999, b"\xff\xfe", b"a: &a [*a]", b"1")
    path.write_bytes(draw.choice(found))


def _replaced(path: Path, draw: random.Random) -> None:
    """Something else than a regular file of that name."""
    path.unlink()
    kind = draw.randrange(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(path.parent / "nowhere")


def _value(path: Path, draw: random.Random) -> None:
    """Another value, or none, at a random place of a JSON file or a checkpoint; of another file torn lines."""
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)
        node, key = draw.choice([place for place in _places(state) if not isinstance(place[1], int)])
        del node[key]
        torch.save(state, path)
        return
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        places = [(node, key) for node, key in _places(tree)]
        node, key = draw.choice(places)
    except (ValueError, IndexError):
        lines = path.read_bytes().splitlines(keepends=True)
        draw.shuffle(lines)
        path.write_bytes(b"".join(lines[: max(1, len(lines) - 1)]))
        return
    if draw.randrange(3) == 0:
        del node[key]
    else:
        odd = (None, True, -1, 0, 2**63, 10**30, 1e308, math.nan, *("", "x", "\x1b[31m", "=1", "../up"))
        node[key] = draw.choice((*odd, [], {}, [[]], {"a": {}}))
    path.write_text(json.dumps(tree), encoding="utf-8")


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def _exchanged(path: Path, draw: random.Random) -> None:
    """What another file beside it holds."""
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path]
    if others:
        shutil.copyfile(draw.choice(others), path)


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "bit": _bit, "noise": _noise, "torn": _torn, "other": _other, "replaced": _replaced, "value": _value,
    "exchanged": _exchanged,
}  # fmt: skip

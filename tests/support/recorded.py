"""Recorded outputs: everything that a user would see, compared with a text file that is committed.

A test collects a broad piece of the house on fixed input as lines of text and calls `check` with them; words
are compared exactly, and so are whole numbers; numbers with a point or an exponent within a tolerance.
`pytest TEST --record` writes the recording again: read its difference before it is committed.

A file holds several short lines in one, parted by ` ¦`, within a stanza: a title, or a line and the indented
lines under it. A stanza begins a line of the file, so that a change moves nothing outside its stanza.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
SHOWN_LINES = 12
WIDTH = 160
PART = " ¦"
recording = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the recorded outputs of these tests again")


def pytest_configure(config: pytest.Config) -> None:
    global recording
    recording = bool(config.getoption("--record", default=False))


def check(path: Path, lines: Iterable[str], relative: float = 1e-6, absolute: float = 0.0) -> None:
    """Fail with the first differing lines unless `lines` say what the recording says."""
    said = [line.rstrip() for text in lines for line in (str(text).splitlines() or [""])]
    said = list(unfold(said))
    if recording:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(fold(said)) + "\n", encoding="utf-8")
        return
    if not path.exists():
        pytest.fail(f"No recording {path.name}: write it with pytest TEST --record, read it and commit it.")
    recorded = list(unfold(path.read_text(encoding="utf-8").splitlines()))
    differences = list(different(recorded, said, relative, absolute))
    if differences:
        shown = "\n".join(differences[: 2 * SHOWN_LINES])
        more = f"\n... {len(differences)} lines in all" if len(differences) > 2 * SHOWN_LINES else ""
        pytest.fail(
            f"{path.name} differs from its recording (- recorded, + now):\n{shown}{more}\n"
            "If this is what it should say: pytest TEST --record, read the difference and commit it.",
            pytrace=False,
        )


def fold(lines: list[str]) -> Iterator[str]:
    """Several lines in one while they are of one stanza and fit; `unfold` takes them apart again."""
    line = ""
    for place, text in enumerate(lines):
        follows = lines[place + 1] if place + 1 < len(lines) else ""
        indented, before = text.startswith("  "), lines[place - 1] if place else ""
        begins = not indented and (
            text.startswith(("#", "==", " ")) or before[:1] == " " or follows[:1] == " "
        )
        joined = f"{line}{PART}{text if indented else f' {text}'}"
        if begins or not (line and text) or len(joined) > WIDTH:
            if place:
                yield line
            line = text
        else:
            line = joined
    yield line


def unfold(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        first, *others = line.split(PART)
        yield first
        yield from (text if text.startswith("  ") else text.removeprefix(" ") for text in others)


def different(recorded: list[str], said: list[str], relative: float, absolute: float) -> Iterator[str]:
    """Lines that differ, with their number in the recording; added and missing lines are aligned."""
    if len(recorded) == len(said):
        for number, (before, now) in enumerate(zip(recorded, said, strict=True), 1):
            if not same(before, now, relative, absolute):
                yield f"{number}: - {before}"
                yield f"{number}: + {now}"
        return
    matcher = difflib.SequenceMatcher(None, recorded, said, autojunk=False)
    for kind, start, end, now_start, now_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        before, now = recorded[start:end], said[now_start:now_end]
        if len(before) == len(now):
            pairs = zip(before, now, strict=True)
            if all(same(old, new, relative, absolute) for old, new in pairs):
                continue
        yield from (f"{start + i + 1}: - {line}" for i, line in enumerate(before))
        yield from (f"{start + 1}: + {line}" for line in now)


def same(before: str, now: str, relative: float, absolute: float) -> bool:
    """Whether two lines have the same words, the same whole numbers, and other numbers within the tolerance."""
    if before == now:
        return True
    if NUMBER.split(before) != NUMBER.split(now):
        return False
    pairs = zip(NUMBER.findall(before), NUMBER.findall(now), strict=True)
    return all(close(old, new, relative, absolute) for old, new in pairs)


def close(before: str, now: str, relative: float, absolute: float) -> bool:
    if before == now:
        return True
    if is_whole(before) and is_whole(now):
        return int(before) == int(now)
    return math.isclose(float(before), float(now), rel_tol=relative, abs_tol=absolute)


def is_whole(token: str) -> bool:
    return token.lstrip("+-").isdigit()


def number(value: float) -> str:
    """A float with eight digits and always a point, so that a tolerance holds for it; -0 is 0."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    text = f"{value + 0.0:.8g}"
    return text if re.search(r"[.e]", text) else f"{text}.0"


def flat(value: object, name: str = "") -> Iterator[str]:
    """`name: value` lines of nested values: mappings, sequences, dataclasses, tables, arrays, text, numbers."""
    if isinstance(value, pd.DataFrame):
        yield f"{name}: table {len(value)} x {len(value.columns)}"
        yield "  " + " | ".join(map(str, value.columns))
        for row in value.itertuples(index=not isinstance(value.index, pd.RangeIndex), name=None):
            yield "  " + " | ".join(map(short, row))
    elif isinstance(value, pd.Series):
        yield from flat(dict(value.items()), name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        yield from flat({field.name: getattr(value, field.name) for field in fields}, name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
        if not value:
            yield f"{name}: empty"
    elif isinstance(value, set | frozenset):
        yield f"{name}: {{{', '.join(sorted(map(short, value)))}}}"
    elif isinstance(value, np.ndarray) or (isinstance(value, list | tuple) and all(map(is_plain, value))):
        yield f"{name}: {short(value)}"
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flat(item, f"{name}[{index}]")
    else:
        yield f"{name}: {short(value)}"


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float | np.generic)


def short(value: object) -> str:
    """One value in one line: floats by `number`, arrays with their shape, text as it is."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float | np.floating):
        return number(value)
    if isinstance(value, np.ndarray):
        return (
            f"{'x'.join(map(str, value.shape))} [{', '.join(short(item) for item in value.ravel().tolist())}]"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(short, value))}]"
    return str(value)

"""Labels of models: their names, shortened, with the settings that tell models of one name apart."""

from __future__ import annotations

import pandas as pd

from analysis.loading.columns import SETTING_COLUMNS


def short_names(names: pd.Series) -> pd.Series:
    """Return the names without words that all share: "kda" for "kda relu2" if every model has relu2.

    The first word, the preset, stays; a single name is not shortened.
    """
    names = names.astype("str")
    words = {name: name.split() for name in names.unique()}
    shared = set.intersection(*(set(after) for _, *after in words.values())) if all(words.values()) else set()
    if len(words) < 2 or not shared:
        return names
    short = {
        name: " ".join([first, *(w for w in after if w not in shared)])
        for name, (first, *after) in words.items()
    }
    return names.map(short) if len(set(short.values())) == len(short) else names


OF_TASK = (
    *("data", "training_set", "validation_set", "test_set", "tokenizer", "vocab_size", "seq_len", "pack"),
    *("tokens_per_step", "data_fingerprint"),
)
"""Columns of a setting that a synthetic task decides; labels name its options instead."""


SCORED = ("validation_stride", "validation_tokens", "test_stride", "test_tokens")
"""What was scored, which labels name only where models differ in nothing else: evaluate.stride, evaluate.windows."""


def labels(
    runs: pd.DataFrame, key: str, leave_out: tuple[str, ...] = (), within: str | None = None
) -> pd.Series:
    """Return a label for each row: its name and, where a name has several values of ``key``, what differs.

    leave_out: columns that ``key`` does not cover. within: a column of groups; only what differs inside a group counts.
    Values that no column distinguishes show part of their hash.
    """
    labels = short_names(runs["name"])
    groups = pd.Series("", index=runs.index) if within is None else runs[within]
    for _, group in runs.groupby("name"):
        if not _differs(group, key, groups):
            continue
        columns = [column for column in _columns(group) if column not in leave_out]
        differing = [column for column in columns if _differs(group, column, groups)]
        hidden = {"data_fingerprint", *_determined_by_depth(group)}
        shown = [column for column in differing if column not in hidden]
        described, ambiguous = _described_by(shown, group, key, groups)
        if ambiguous.any():
            shown += [column for column in SCORED if column in group and _differs(group, column, groups)]
            described, ambiguous = _described_by(shown, group, key, groups)
        suffix = described.where(~ambiguous, (described + " #" + group[key].str[:6]).str.strip())
        labels[group.index] = labels[group.index] + " (" + suffix + ")"
    return labels


def _described_by(
    columns: list[str], group: pd.DataFrame, key: str, groups: pd.Series
) -> tuple[pd.Series, pd.Series]:
    """Describe every row by these columns, and say where several values of ``key`` are described alike."""
    described = group[columns].apply(_describe, axis=1) if columns else pd.Series("", index=group.index)
    return described, group[key].groupby([described, groups[group.index]]).transform("nunique") > 1


def _differs(group: pd.DataFrame, column: str, groups: pd.Series) -> bool:
    """Return whether a column has several values in a group of rows."""
    return group[column].groupby(groups[group.index]).nunique(dropna=False).max() > 1


def _columns(group: pd.DataFrame) -> list[str]:
    """The columns in which settings may differ; the task in place of what it decides."""
    if group["task"].isna().any():
        return list(SETTING_COLUMNS)
    return ["task", *(column for column in SETTING_COLUMNS if column not in OF_TASK)]


def _determined_by_depth(group: pd.DataFrame) -> list[str]:
    """Return "pattern", as a column to leave out of labels, if the number of layers determines it."""
    return ["pattern"] if group.groupby("depth")["pattern"].nunique().le(1).all() else []


def _describe(values: pd.Series) -> str:
    return ", ".join(_described(str(key), value) for key, value in values.items())


def _described(key: str, value: object) -> str:
    """A value with its column, "depth=2"; of a task the options in which it differs from others: "pairs 4"."""
    if key == "task":
        return str(value).partition(" (")[2].removesuffix(")")
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"

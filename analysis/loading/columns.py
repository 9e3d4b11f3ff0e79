"""The columns of ``Results.runs`` and ``Results.metrics``, each documented once; blocks and labels of models in them.

The loader reads ``source`` (a path in summary.json), the README prints the tables, and the tests compare both.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pandas as pd


class Column(NamedTuple):
    """Name, type, unit and meaning of one column, and where the loader finds its value.

    ``source``: a path in summary.json; "": the loader derives the value. ``optional``: may be empty.

    ``setting``: runs that differ here are different models or recipes, not different seeds of one.
    """

    name: str
    dtype: str
    source: str
    unit: str
    meaning: str
    optional: bool = False
    setting: bool = False


def _setting(name: str, dtype: str, source: str, unit: str, meaning: str, optional: bool = False) -> Column:
    return Column(name, dtype, source, unit, meaning, optional, setting=True)


def _evaluation(split: str) -> tuple[Column, ...]:
    def column(name: str, dtype: str, unit: str, meaning: str) -> Column:
        return Column(f"{split}_{name}", dtype, f"metrics.{split}.{name}", unit, meaning, optional=True)

    return (
        column(
            "loss",
            "float64",
            "nats/token",
            f"mean loss over the whole {split} split (of a synthetic task: nats an answer), best weights",
        ),
        column("perplexity", "float64", "", "exp(loss), per token of this tokenizer"),
        column(
            "word_perplexity",
            "float64",
            "",
            "exp(total loss / words of the raw text); empty where blanks do not part words",
        ),
        column("bits_per_byte", "float64", "bits/byte", "total loss in bits / UTF-8 bytes of the raw text"),
        column("tokens", "Int64", "tokens", "tokens scored"),
        column("words", "Int64", "words", "words of the raw text"),
        column("bytes", "Int64", "bytes", "UTF-8 bytes of the raw text"),
        column("stride", "Int64", "tokens", "step between evaluation windows"),
        column("accuracy", "float64", "", "of a synthetic task: share of right answers"),
        column(
            "sequence_accuracy",
            "float64",
            "",
            "of a synthetic task: share of sequences without a wrong answer",
        ),
        column("answers", "Int64", "answers", "of a synthetic task: answers asked for"),
    )


RUN_COLUMNS: tuple[Column, ...] = (
    Column("experiment", "str", "experiment", "", "name of the experiment"),
    Column("run", "str", "run", "", "content hash of the run, 12 hex digits"),
    Column("folder", "str", "", "", "where the run was read from"),
    Column("name", "str", "name", "", "what a legend shows: preset and layout"),
    Column(
        "label",
        "str",
        "",
        "",
        "name less the words that all names share, plus what differs where one name has several settings",
    ),
    Column("setting", "str", "", "", "hash of everything but the seed: equal for the seeds of one setting"),
    Column("sweep", "str", "", "", "hash of everything but seed, lr and lr_min: equal for a sweep of rates"),
    Column("seed", "Int64", "seed", "", "seed of the run"),
    _setting("preset", "str", "model.preset", "", "architecture preset"),
    _setting("pattern", "str", "model.pattern", "", "mixer letter of each layer"),
    _setting("layout", "str", "model.layout", "", "named layout", optional=True),
    _setting("depth", "Int64", "model.depth", "layers", "number of layers"),
    _setting("d_model", "Int64", "model.d_model", "", "model width"),
    _setting("residual", "str", "model.residual", "", "residual scheme"),
    _setting("channel", "str", "model.channel", "", "channel mixer"),
    Column(
        "match",
        "str",
        "model.match",
        "",
        "what widths were solved for: as many params, flops or state bytes as the plain transformer",
        optional=True,
    ),
    Column(
        "match_length",
        "Int64",
        "model.match_length",
        "tokens",
        "length at which FLOPs or decode states were matched",
        optional=True,
    ),
    Column("family", "str", "model.family", "", "family of the architecture"),
    Column("color", "str", "model.color", "", "colour in every figure, #rrggbb"),
    Column(
        "blocks",
        "str",
        "blocks",
        "",
        "JSON list of the blocks used: letter, name, title, family, color, mask",
    ),
    _setting("data", "str", "data.name", "", "data configuration"),
    _setting("training_set", "str", "data.train", "", "text trained on"),
    _setting("validation_set", "str", "data.validation", "", "text of the validation split"),
    _setting("test_set", "str", "data.test", "", "text of the test split"),
    _setting("tokenizer", "str", "data.tokenizer", "", "tokenizer"),
    _setting("vocab_size", "Int64", "data.vocab_size", "tokens", "vocabulary size"),
    _setting("seq_len", "Int64", "data.seq_len", "tokens", "training context"),
    _setting("pack", "str", "data.pack", "", "stream or document; none for a synthetic task", optional=True),
    _setting(
        "data_fingerprint", "str", "data.fingerprint", "", "hash of the text and tokenizer the model sees"
    ),
    Column(
        "train_split_tokens",
        "Int64",
        "data.splits.train.tokens",
        "tokens",
        "size of the training split",
        optional=True,
    ),
    Column(
        "train_split_bytes",
        "Int64",
        "data.splits.train.bytes",
        "bytes",
        "size of the training split",
        optional=True,
    ),
    Column(
        "task",
        "str",
        "",
        "",
        "synthetic task, with the options in which the runs of one task differ; none for text",
        optional=True,
    ),
    Column(
        "hardness",
        "str",
        "data.hardness",
        "",
        "of a synthetic task: what the difficulty of an answer counts",
        optional=True,
    ),
    Column(
        "chance",
        "float64",
        "data.chance",
        "",
        "of a synthetic task: share of answers that are right without looking at what came before",
        optional=True,
    ),
    Column(
        "shortcut",
        "float64",
        "data.shortcut.accuracy",
        "",
        "of a synthetic task: share of answers of the test split right by copying from a fixed spot",
        optional=True,
    ),
    Column(
        "memorised",
        "float64",
        "data.memorised",
        "",
        "of a synthetic task: share of answers of the test split right by a memory of as much training, seed 0's",
        optional=True,
    ),
    Column(
        "unigram_entropy",
        "float64",
        "data.unigram_entropy",
        "nats/token",
        "entropy of single tokens of the training split: the loss of knowing only how frequent each one is",
        optional=True,
    ),
    _setting("planned_steps", "Int64", "recipe.steps", "steps", "optimiser steps asked for"),
    _setting("batch_size", "Int64", "recipe.batch_size", "sequences", "sequences in a micro-batch"),
    _setting("accumulate", "Int64", "recipe.accumulate", "", "micro-batches in a step"),
    _setting("tokens_per_step", "Int64", "recipe.tokens_per_step", "tokens", "tokens in an optimiser step"),
    _setting("lr", "float64", "recipe.lr", "", "peak learning rate"),
    _setting("lr_min", "float64", "recipe.lr_min", "", "final learning rate"),
    Column("lr_study", "str", "recipe.lr_study", "", "study that selected the rate", optional=True),
    _setting("warmup_steps", "Int64", "recipe.warmup_steps", "steps", "linear warm-up"),
    Column("optimizer", "str", "recipe.optimizer", "", "optimiser; empty in old runs: adamw", optional=True),
    Column(
        "schedule", "str", "recipe.schedule", "", "learning-rate schedule; in old runs cosine", optional=True
    ),
    _setting("weight_decay", "float64", "recipe.weight_decay", "", "weight decay"),
    _setting("clip", "float64", "recipe.clip", "", "gradient norm limit", optional=True),
    _setting("precision", "str", "recipe.precision", "", "training precision"),
    Column("parameters", "Int64", "parameters", "", "parameters, tied ones once"),
    Column(
        "parameters_non_embedding",
        "Int64",
        "parameters_non_embedding",
        "",
        "parameters but for the embedding",
    ),
    Column("flops_forward", "float64", "flops_per_token.forward", "FLOPs/token", "forward pass at seq_len"),
    Column(
        "flops_training",
        "float64",
        "flops_per_token.training",
        "FLOPs/token",
        "forward and backward at seq_len",
    ),
    Column("state_bytes_1024", "Int64", "state_bytes.1024", "bytes", "decode state after 1,024 tokens"),
    Column("state_bytes_8192", "Int64", "state_bytes.8192", "bytes", "decode state after 8,192 tokens"),
    Column("state_bytes_131072", "Int64", "state_bytes.131072", "bytes", "decode state after 131,072 tokens"),
    Column("state_bytes_context", "Int64", "", "bytes", "decode state after seq_len tokens", optional=True),
    *_evaluation("validation"),
    *_evaluation("test"),
    Column(
        "best_step", "Int64", "best_step", "steps", "step of the lowest validation loss, whose weights count"
    ),
    Column("steps", "Int64", "steps", "steps", "optimiser steps taken"),
    Column(
        "stopped",
        "str",
        "stopped",
        "",
        "finished, early, or imported: trained elsewhere, with nothing known of it",
    ),
    Column("tokens", "Int64", "tokens", "tokens", "tokens trained on"),
    Column("seconds", "float64", "seconds", "s", "training time"),
    Column("tokens_per_second", "float64", "tokens_per_second", "tokens/s", "training throughput"),
    Column("mfu", "float64", "mfu", "", "share of mfu_peak_flops used; missing where above 1", optional=True),
    Column("mfu_peak_flops", "float64", "mfu_peak_flops", "FLOP/s", "peak the MFU refers to", optional=True),
    Column("mfu_peak_source", "str", "mfu_peak_source", "", "where that peak comes from", optional=True),
    Column("peak_memory_bytes", "Int64", "peak_memory_bytes", "bytes", "highest memory use", optional=True),
    Column("commit", "str", "commit", "", "commit of the code", optional=True),
    Column(
        "dirty", "boolean", "dirty", "", "the working tree had changes that were not committed", optional=True
    ),
    Column("versions", "str", "versions", "", "JSON object: Python and library versions"),
    Column("cpu", "str", "machine.host_cpu", "", "processor"),
    Column("gpu", "str", "machine.gpu", "", "GPU, empty on a CPU run", optional=True),
    Column("cores", "Int64", "machine.cores", "", "processor cores"),
    Column("threads", "Int64", "machine.threads", "", "threads the run used"),
    Column(
        "capability",
        "str",
        "machine.capability",
        "",
        "instructions that PyTorch and MKL used, e.g. AVX512",
        optional=True,
    ),
    Column(
        "workers", "Int64", "workers", "", "cells of a sweep that trained at the same time", optional=True
    ),
    Column(
        "load",
        "float64",
        "load",
        "",
        "processes that wanted a core in the last minute of training, on average",
        optional=True,
    ),
    Column("memory_bytes", "Int64", "machine.memory_bytes", "bytes", "memory of the machine"),
    Column("platform", "str", "machine.platform", "", "operating system"),
    Column("command", "str", "command", "", "the exact command"),
    Column("finished", "str", "finished", "ISO 8601", "when the run ended"),
)

METRIC_KEYS = ("experiment", "run", "name", "label", "seed")

METRIC_COLUMNS: tuple[Column, ...] = (
    *(column for column in RUN_COLUMNS if column.name in METRIC_KEYS),
    Column("step", "Int64", "step", "steps", "optimiser steps so far"),
    Column("tokens", "Int64", "tokens", "tokens", "training tokens so far"),
    Column("split", "str", "split", "", "train (mean since the last row) or validation"),
    Column(
        "loss",
        "float64",
        "loss",
        "nats/token",
        "cross-entropy; while training, validation may cover a part of its split",
    ),
    Column("aux_loss", "float64", "aux_loss", "", "weighted sum of the auxiliary losses", optional=True),
    Column("perplexity", "float64", "perplexity", "", "exp(loss)", optional=True),
    Column(
        "accuracy", "float64", "accuracy", "", "of a synthetic task: share of right answers", optional=True
    ),
    Column(
        "sequence_accuracy",
        "float64",
        "sequence_accuracy",
        "",
        "of a synthetic task: share of sequences without a wrong answer",
        optional=True,
    ),
    Column(
        "lr", "float64", "lr", "", "learning rate of this step; in older runs, of the next", optional=True
    ),
    Column(
        "grad_norm", "float64", "grad_norm", "", "gradient norm before clipping, of this step", optional=True
    ),
    Column(
        "grad_norm_max",
        "float64",
        "grad_norm_max",
        "",
        "the largest gradient norm before clipping of the steps since the last row",
        optional=True,
    ),
    Column("seconds", "float64", "seconds", "s", "training time so far", optional=True),
    Column("tokens_per_second", "float64", "tokens_per_second", "tokens/s", "throughput", optional=True),
    Column("mfu", "float64", "mfu", "", "model FLOPs utilisation; missing where above 1", optional=True),
    Column(
        "peak_memory_bytes", "Int64", "peak_memory_bytes", "bytes", "highest memory use so far", optional=True
    ),
)

AUX_PREFIX = "aux:"
"""Metric columns ``aux:<name>`` (float64) hold single auxiliary losses; which exist depends on the runs."""

SETTING_COLUMNS = tuple(column.name for column in RUN_COLUMNS if column.setting)

RATES = ("lr", "lr_min")
"""Columns that a sweep of learning rates changes."""


def markdown(columns: tuple[Column, ...]) -> str:
    """Format columns as a Markdown table."""
    head = "| column | type | unit | meaning |\n|---|---|---|---|\n"
    rows = (f"| `{c.name}` | {c.dtype} | {c.unit or '–'} | {c.meaning} |\n" for c in columns)
    return head + "".join(rows)


# Blocks, as the summaries of runs describe them.
#
# A block of summary.json has letter, name, title, family, color and mask, and, where its author gave them, ``choice``
# (a noun for what its router chooses: "timeline") and ``sketch`` (rows of boxes, `analysis.plotting.sketches`). What
# is missing, as in older summaries, follows from the mask.

NOUNS = {"timeline": "timeline", "memories": "memory", "recurrent": "memory"}
"""Nouns for the choices of a router, by the mask of its block."""

DEFAULT_NOUN = "expert"


def blocks(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the description of every block of every run (Results.runs); blocks of several runs repeat."""
    return [
        block for text in runs["blocks"].dropna() for block in json.loads(text) if isinstance(block, dict)
    ]


def layers_of(pattern: str) -> list[str]:
    """Return what stands for each layer's mixer in a run's pattern: letters, and names in braces: W, F, {local}."""
    return re.findall(r"\{\w+\}|.", pattern)


def noun(block: dict[str, Any]) -> str:
    """Return the noun for the choices of a block's router: its own, else that of its mask, else "expert"."""
    return str(block.get("choice") or NOUNS.get(block.get("mask", ""), DEFAULT_NOUN))


def nouns(runs: pd.DataFrame) -> dict[str, str]:
    """Return block name -> `noun` for every block that these runs describe."""
    return {block.get("name", ""): noun(block) for block in blocks(runs)}


def plural(word: str) -> str:
    """Return the plural of a noun: memories, timelines, keys."""
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{word}s"


# Labels of models: their names, shortened, with the settings that tell models of one name apart.


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

    What differs are columns of a setting, "depth=2", and configuration keys, "optim.beta2=0.95". leave_out: columns
    that ``key`` does not cover. within: a column of groups; only what differs inside a group counts. Settings that
    nothing recorded tells apart (runs without an identity.json) show part of their hash.
    """
    labels = short_names(runs["name"])
    groups = pd.Series("", index=runs.index) if within is None else runs[within]
    for _, group in runs.groupby("name"):
        if not _differs(group, key, groups):
            continue
        columns = [column for column in _columns(group) if column not in leave_out]
        differing = [column for column in columns if _differs(group, column, groups)]
        hidden = {"data_fingerprint", *_determined(group)}
        shown = [column for column in differing if column not in hidden]
        described, ambiguous = _described_by(shown, group, key, groups)
        if ambiguous.any():
            for column in option_names(group):
                if _differs(group, column, groups[group.index] + described):
                    shown.append(column)
                    described, ambiguous = _described_by(shown, group, key, groups)
        if ambiguous.any():
            shown += [column for column in SCORED if column in group and _differs(group, column, groups)]
            described, ambiguous = _described_by(shown, group, key, groups)
        suffix = described.where(~ambiguous, (described + " #" + group[key].str[:6]).str.strip())
        labels[group.index] += suffix.map(lambda text: f" ({text})" if text else "")
    return labels


def option_names(runs: pd.DataFrame) -> list[str]:
    """Return the columns that are configuration keys: those that differ and that no documented column holds."""
    return [column for column in runs if "." in str(column)]


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


def _determined(group: pd.DataFrame) -> list[str]:
    """Return the columns that labels leave out because another says as much: a pattern by its depth, a final rate."""
    by = {"pattern": "depth", "lr_min": "lr"}
    return [name for name, other in by.items() if group.groupby(other)[name].nunique().le(1).all()]


def _describe(values: pd.Series) -> str:
    return ", ".join(
        _described(str(key), value) for key, value in values.items() if "." not in str(key) or pd.notna(value)
    )


def _described(key: str, value: object) -> str:
    """A value with its column, "depth=2"; of a task the options in which it differs from others: "pairs 4"."""
    if key == "task":
        return str(value).partition(" (")[2].removesuffix(")")
    return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"

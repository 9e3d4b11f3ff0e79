"""The columns of ``Results.runs`` and ``Results.metrics``, each documented once.

The loader reads ``source`` (a path in summary.json), the README prints the tables, the tests compare both.
"""

from __future__ import annotations

from typing import NamedTuple


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
        column("word_perplexity", "float64", "", "exp(total loss / words of the raw text)"),
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
    _setting("weight_decay", "float64", "recipe.weight_decay", "", "AdamW weight decay"),
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
    Column("stopped", "str", "stopped", "", "finished or early"),
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

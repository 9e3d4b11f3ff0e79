"""A configuration becomes a planned run: keys that others set are resolved, mistakes refused, its folder found.

`plan` is the entry, and reads as the contents of this page. What decides a run's result is `planning.identity`.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.util
import operator
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from experiments import data, runs
from experiments.configuration.compose import label, model_color
from experiments.configuration.schema import HELD_OUT, Config, OptimConfig, ProbeConfig, TrainerConfig
from experiments.costs.model_costs import derive_costs
from experiments.data import TASKS
from experiments.parallel import group
from experiments.planning.identity import folder_of, identify
from experiments.runs import SUMMARY, RunFolder
from experiments.system import machine, paths
from experiments.system.paths import PUBLISHED, SELECTION
from zoo import cost, registry
from zoo.backends import TRAINING, check_backend
from zoo.config import ModelConfig, dominant_mixer, from_dict, layout_name, mixers_of, split
from zoo.errors import UserError, unknown
from zoo.interfaces import grouped_parameters
from zoo.matching import match, plain_transformer
from zoo.model import letters_of, meta_model
from zoo.options import check_limits, remembered
from zoo.pretrained import converted

# Cells of a sweep mostly share their data and their model.
check_data, fingerprint = remembered(data.check), remembered(data.fingerprint)
check_writable = remembered(paths.check_writable)
_check_backend, _match = remembered(check_backend), remembered(match)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that has been checked: its configuration, its layers, its identity and its folder."""

    config: Config
    letters: str
    identity: dict[str, Any]
    folder: RunFolder

    @property
    def run(self) -> str:
        """The name of the run's folder."""
        return self.folder.path.name

    @property
    def unscored(self) -> list[str]:
        """The splits of evaluate.splits that a complete run has no score of. Raises UserError for a damaged summary."""
        try:
            scored = set(self.folder.summary()["metrics"])
        except (LookupError, TypeError) as error:
            raise self.folder.damaged(SUMMARY, error) from error
        return [name for name in self.config.evaluate.splits if name not in scored]

    @property
    def done(self) -> bool:
        """Return whether nothing is left to do: the run is complete, with a score of every split of evaluate.splits."""
        return self.folder.complete and not self.unscored

    @property
    def title(self) -> str:
        """The name of the run in messages: its model's label and its seed."""
        return f"{label(self.config, self.letters)} seed {self.config.seed}"

    def yaml(self) -> str:
        """The whole resolved configuration."""
        return OmegaConf.to_yaml(OmegaConf.structured(self.config))


def plan(config: Config) -> Plan:
    """The run of a configuration, checked, with its folder found. Raises UserError; writes nothing."""
    check_limits(config)
    config = resolve(config)
    check_config(config)
    letters = letters_of(config.model)
    identity = identify(config, letters, fingerprint(config.data))
    return Plan(config, letters, *folder_of(config, identity))


# Keys that set other keys: match, trainer.tokens_per_parameter, optim.lr_min_ratio and optim.lr_study.


def resolve(config: Config) -> Config:
    """The configuration with the values of keys that others set; of a task with its vocabulary and length.

    Resolving again changes nothing. Raises UserError for keys that contradict each other.
    """
    config = begin_from_weights(config)
    if config.data.name in TASKS:
        config = dataclasses.replace(config, data=data.resolve_task(config.data))
    elif config.data.name == "hf":
        config = dataclasses.replace(config, data=data.pinned(config.data))
    config = dataclasses.replace(config, optim=resolve_lr_min(config.optim))
    return at_studied_rate(apply_match(resolve_steps(config)))


def begin_from_weights(config: Config) -> Config:
    """The configuration with the model and the tokenizer of start.weights; without these as it is.

    Raises UserError for weights that cannot be read or become no such model, and for keys that ask for another model.
    """
    start, text = config.start, config.data
    if start.weights is None:
        if start.into is not None or start.indexer or start.gates:
            raise UserError(
                "start.into, start.indexer and start.gates need weights to begin with: start.weights=FOLDER"
            )
        return config
    if config.match is not None:
        raise UserError(
            f"match={config.match} changes widths, which start.weights sets; leave one of them out"
        )
    source = runs.find_weights(start.weights)
    if start.sha256 not in (None, source.sha256):
        raise UserError(f"{start.weights} holds other weights than those of start.sha256={start.sha256}")
    if start.vocab_size is not None:  # resolved before
        return config
    try:
        model = source.config if start.into is None else converted(source.config, config.model)
    except UserError as error:
        raise UserError(f"start.weights={start.weights}: {error}") from error
    model = dataclasses.replace(model, backend=config.model.backend)
    if text.name not in TASKS and "data.tokenizer" not in config.given:
        text = dataclasses.replace(text, tokenizer="pretrained", tokenizer_path=start.weights)
    start = dataclasses.replace(start, sha256=source.sha256, vocab_size=source.vocab_size)
    begun = dataclasses.replace(config, model=model, data=text, start=start)
    for key in sorted(config.given):
        place = operator.attrgetter(key)
        if key.startswith("model.") and place(config) != place(begun):
            raise UserError(f"{key} is that of start.weights={start.weights}; leave it out")
    if text.name in TASKS and (size := data.resolve_task(text).vocab_size) != source.vocab_size:
        raise UserError(
            f"start.weights={start.weights} knows {source.vocab_size} tokens and data={text.name} has {size}; give "
            "weights that were trained on it"
        )
    return begun


def apply_match(config: Config) -> Config:
    """The configuration with the widths that `match` asks for. Raises UserError where there are none."""
    length = config.match_length
    if length is not None and config.match in (None, "params"):
        raise UserError(f"match_length={length} works only with match=flops and match=state; leave it out")
    if config.match is None:
        return config
    model = _match(config.model, config.match, seq_len=config.data.seq_len, length=length)
    return dataclasses.replace(config, model=model)


def resolve_steps(config: Config) -> Config:
    """The configuration with the max_steps that trainer.tokens_per_parameter asks for; without one as it is.

    Raises UserError beside a max_steps that is not the default.
    """
    ratio, trainer = config.trainer.tokens_per_parameter, config.trainer
    if ratio is None:
        return config
    if trainer.max_steps != TrainerConfig.max_steps:
        raise UserError(
            f"trainer.max_steps={trainer.max_steps} and trainer.tokens_per_parameter={ratio:g} both set the length of "
            "training; leave one of them out"
        )
    size = meta_model(plain_transformer(config.model), **config.sizes)
    steps = max(1, round(ratio * cost.parameters_non_embedding(size) / config.tokens_per_step))
    resolved = dataclasses.replace(trainer, max_steps=steps, tokens_per_parameter=None)
    return dataclasses.replace(config, trainer=resolved)


def resolve_lr_min(config: OptimConfig) -> OptimConfig:
    """The recipe with lr_min = lr_min_ratio·lr, to 12 digits, in the place of the ratio; without a ratio as it is.

    So 0.1 of 3e-3 is 3e-4, and the run has the name that it has with lr_min=3e-4. Raises UserError beside an lr_min
    that is not the default.
    """
    ratio = config.lr_min_ratio
    if ratio is None:
        return config
    if config.lr_min != OptimConfig.lr_min:
        raise UserError(
            f"optim.lr_min={config.lr_min:g} and optim.lr_min_ratio={ratio:g} both set the lowest rate; leave one of "
            f"them out, or, where an experiment sets lr_min, add optim.lr_min={OptimConfig.lr_min:g}, its default"
        )
    return dataclasses.replace(config, lr_min=float(f"{ratio * config.lr:.12g}"), lr_min_ratio=None)


def at_rate(config: OptimConfig, rate: float) -> OptimConfig:
    """The recipe with another lr; lr_min keeps its ratio to lr, so that schedules of all rates have one shape.

    A lr_min_ratio stays, and does the same. The rate is no study's any more.
    """
    lr_min = config.lr_min
    if config.lr_min_ratio is None:
        lr_min = float(f"{rate * config.lr_min / config.lr:.6g}")
    return dataclasses.replace(config, lr=rate, lr_min=lr_min, lr_study=None)


def at_studied_rate(config: Config) -> Config:
    """The configuration at the rate that the study optim.lr_study selected for its model; without one as it is.

    Raises UserError where the study has no such rate, and beside another optim.lr.
    """
    optim, study = config.optim, config.optim.lr_study
    if study is None:
        return config
    rate = studied_rate(study, label(config, letters_of(config.model)))
    if optim.lr not in (OptimConfig.lr, rate):
        raise UserError(
            f"optim.lr={optim.lr:g} and optim.lr_study={study} both set the learning rate; leave optim.lr out, or give "
            "optim.lr_study=null with it"
        )
    return dataclasses.replace(config, optim=dataclasses.replace(at_rate(optim, rate), lr_study=study))


def studied_rate(study: str, model: str) -> float:
    """The rate that a study of results/published selected for a model, named as the study names it.

    Raises UserError for a study that is not there or selected nothing, and for a model that it did not have.
    """
    rates = _rates(study)
    if model not in rates:
        raise UserError(
            f"optim.lr_study={study} has no learning rate for {model}, only for {', '.join(rates)}; give "
            "optim.lr_study=null and a rate, optim.lr=..."
        )
    return rates[model]


@functools.lru_cache
def _rates(study: str) -> dict[str, float]:
    """Model -> its rate; read once a process."""
    known = sorted(path.parent.name for path in PUBLISHED.glob(f"*/{SELECTION}"))
    if study not in known:
        raise unknown("optim.lr_study (a folder of results/published with a selection)", study, known)
    with (PUBLISHED / study / SELECTION).open(encoding="utf-8", newline="") as rows:
        return {row["model"]: float(row["lr"]) for row in csv.DictReader(rows) if row["chosen"] == "True"}


# What cannot work. A key's own limits stand beside it (zoo.options.limited); data and devices check themselves.

_LOGGERS = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
"""Packages of a logger, of which one is needed."""


def check_config(config: Config) -> None:
    """Refuse what cannot work: sizes that do not fit, data and devices that are not there. Raises UserError."""
    check_writable(config.results, "results")
    _check_schedule(config)
    _check_scores(config)
    _check_together(config)
    _check_loggers(config)
    check_probe(config.probe)
    if config.trainer.probe_every is not None:
        check_measures()
    here = config.sweep.engine == "pool"
    group.check(config)
    check_served(config, here=here)
    model = meta_model(
        config.model, **config.sizes
    )  # every module's own checks, such as heads that divide the width
    if config.start.indexer and not any(of.clip == "indexer" for _, of, _ in grouped_parameters(model)):
        raise UserError(
            f"start.indexer={config.start.indexer}: no block of this model has an indexer; leave it out"
        )
    if here:
        check_fits(config)
    check_data(config.data)


def check_served(
    config: Config, model: ModelConfig | None = None, uses: tuple[str, ...] = TRAINING, *, here: bool = True
) -> None:
    """Refuse a backend that does not serve a model (None: the configuration's) in these uses.

    here: on this machine; else a form of each operation by that name will do. Raises UserError.
    """
    model = model or config.model
    if model.backend == "auto":
        return
    device = group.pick_device(config.device) if here else None
    half = device is not None and group.pick_precision(config.trainer.precision, device) == "bf16"
    packed = config.data.name not in TASKS and config.data.pack == "document"
    _check_backend(model, uses, seq_len=config.data.seq_len, device=device, half=half, packed=packed)


PATIENCE = 1e14
"""FLOPs of a micro-batch for each thread of a CPU, about half an hour of it: without a GPU more are refused."""


NEAR = 30
"""How many times the bytes that layers read a micro-batch may need: then they are counted, which takes a second."""


@remembered
def _activations(config: Config) -> int:
    from experiments.costs.device_memory import device_memory

    return device_memory(config).activations


def _memory_of(config: Config, model: ModelConfig) -> Config:
    """What decides the memory of a micro-batch, so that cells that differ in other keys are counted once."""
    keys = ("precision", "recompute", "recompute_block", "context", "strategy", "devices")
    trainer = TrainerConfig(**{key: getattr(config.trainer, key) for key in keys})
    return Config(model=model, data=config.data, start=config.start, device=config.device, trainer=trainer)


def check_fits(config: Config, model: ModelConfig | None = None, tokens: int | None = None) -> None:
    """Refuse a model that this machine cannot hold in training, or a CPU not get through.

    model, tokens: the model, and the tokens of a micro-batch (None: the configuration's).
    Counted are the least bytes: of weights, gradients and AdamW's moments in fp32, and of what every layer reads for
    its backward pass; on a CPU, where these come near to its memory, half of what PyTorch's own operators keep, for
    fused ones need less. Raises UserError.
    """
    t, length, whole = config.trainer, config.data.seq_len, tokens is None
    built = meta_model(model or config.model, **config.sizes)
    device, fsdp = group.pick_device(config.device), t.strategy == "fsdp"
    gpu, tokens = (
        device.type == "cuda",
        config.data.batch_size * length // t.context if tokens is None else tokens,
    )
    layers = len(built.layers) if t.recompute == "none" else 1
    width = cost.stream_bytes(built) // (2 if group.pick_precision(t.precision, device) == "bf16" else 1)
    weights = 16 * cost.parameters(built) // (t.processes if fsdp else 1)
    kept, there = tokens * width * layers, machine.memory_bytes(device)

    def refuse_more(kept: int) -> None:
        needed = (weights + kept) * (1 if gpu else t.devices)
        if needed > there:
            raise UserError(
                f"a model of {cost.parameters(built):,} parameters"
                f"{f' and micro-batches of {tokens:,} tokens' * (tokens > 0)} need at least {needed:,} bytes in "
                f"training, and {'the GPU' if gpu else 'this machine'} has {there:,}; lower "
                "model.d_model, model.depth, data.batch_size or data.seq_len"
            )

    refuse_more(kept)
    if gpu:
        return
    about = tokens * (6 * cost.parameters(built) + 12 * len(built.layers) * length * built.config.d_model)
    if about >= PATIENCE * t.threads:
        from experiments.costs.model_costs import count_flops

        flops = tokens * count_flops(built, length, backward=True).per_token
        if flops > PATIENCE * t.threads:
            raise UserError(
                f"a micro-batch of {tokens:,} tokens takes {flops:.1e} FLOPs, more than a CPU does in half an hour "
                f"({PATIENCE:.0e} with each of trainer.threads={t.threads}); lower data.seq_len or data.batch_size, or "
                "use a GPU"
            )
    if whole and NEAR * kept > there:
        refuse_more(_activations(_memory_of(config, built.config)) // 2)


def _check_schedule(config: Config) -> None:
    """Refuse steps beyond the last one, rates in the wrong order, and options of another optimiser or schedule."""
    optim, last = config.optim, config.trainer.max_steps
    beyond = [step for step in config.trainer.keep_steps if not 1 <= step <= last]
    if beyond:
        raise UserError(f"trainer.keep_steps has {beyond[0]}; give steps from 1 to trainer.max_steps={last}")
    if optim.lr_min > optim.lr:
        raise UserError(f"optim.lr_min={optim.lr_min} is above optim.lr={optim.lr}; lower it")
    if optim.momentum != OptimConfig.momentum and optim.name == "adamw":
        raise UserError(
            "optim.momentum has no effect with optim.name=adamw, which has optim.beta1; leave it out"
        )
    if optim.decay_share != OptimConfig.decay_share and optim.schedule != "wsd":
        raise UserError(
            f"optim.decay_share works only with optim.schedule=wsd, not {optim.schedule}; leave it out"
        )
    if optim.name != "adamw" and config.trainer.strategy == "fsdp":
        raise UserError(
            f"optim.name={optim.name} needs whole matrices, which trainer.strategy=fsdp cuts; take trainer.strategy=ddp"
        )


def _check_scores(config: Config) -> None:
    """Refuse scores that runs do not record, and windows that leave tokens out."""
    evaluate = config.evaluate
    if evaluate.carry:
        raise UserError(
            "evaluate.carry=true works only with job=evaluate; leave it out, and give it when you evaluate the "
            "finished run"
        )
    trained_on = [split for split in evaluate.splits if split not in HELD_OUT]
    if trained_on:
        raise UserError(f"evaluate.splits has {trained_on[0]}; a run is scored on {' and '.join(HELD_OUT)}")
    if (evaluate.stride or 1) > config.data.seq_len:
        raise UserError(
            f"evaluate.stride={evaluate.stride} is above data.seq_len={config.data.seq_len}; "
            "tokens between windows would never be scored"
        )


def _check_together(config: Config) -> None:
    """Refuse keys that exclude each other."""
    trainer, task = config.trainer, config.data.name
    for key, value in (
        ("trainer.probe_every", trainer.probe_every),
        ("evaluate.stride", config.evaluate.stride),
        ("trainer.context", None if trainer.context == 1 else trainer.context),
    ):
        if value is not None and task in TASKS:
            raise UserError(f"{key}={value} needs a text, but data={task} is a task; leave it out")
    # torch.compile decides itself which activations to save, and ignores the hooks of recomputing.
    if trainer.compile and trainer.recompute != "none":
        raise UserError(
            f"trainer.recompute={trainer.recompute} does not go with trainer.compile=true; leave one of them out"
        )


def _check_loggers(config: Config) -> None:
    """Refuse loggers whose package is not installed here, where cells train here."""
    for name in config.trainer.loggers if config.sweep.engine == "pool" else ():
        specs = map(importlib.util.find_spec, _LOGGERS[name])
        # One without an origin is a folder of that name, such as wandb leaves where it ran.
        if not any(spec is not None and spec.origin is not None for spec in specs):
            raise UserError(
                f"trainer.loggers names {name}, which is not installed; pip install -e '.[log]', or leave it out"
            )


def check_measures() -> None:
    """Raise UserError where a measure's file cannot be imported: tables without it would pass for whole ones."""
    for line in registry.left_out("zoo.probes.measures"):
        raise UserError(f"probing needs every measure: {line}")


def check_probe(probe: ProbeConfig) -> None:
    """Refuse weights that there are not to probe, and an empty sentence. Raises UserError."""
    runs.check(probe.at)
    if probe.sentence is not None and not probe.sentence.strip():
        raise UserError("probe.sentence is empty; give a text, or leave it out for a held-out one")


# What a summary says of a run, whether it was trained here or imported.


def describe(
    config: Config, letters: str, folder: RunFolder, vocab_size: int, device: torch.device
) -> dict[str, Any]:
    """The items of summary.json that follow from a resolved configuration, and provenance: this code, this machine."""
    costs, mixers, words = derive_costs(config, vocab_size), mixers_of(config.model), split(letters)
    named_after = dominant_mixer(config.model, letters)
    model = meta_model(config.model, vocab_size=vocab_size, seq_len=config.data.seq_len)
    commit, dirty = machine.commit()
    return {
        "schema": 1,
        "experiment": config.name,
        "run": folder.path.name,
        "model": {
            "preset": config.model.preset or named_after.name,
            "pattern": letters,
            "layout": layout_name(letters),
            "depth": len(words),
            "d_model": config.model.d_model,
            "residual": config.model.residual.name,
            "channel": config.model.channel.name,
            "color": model_color(config.model, letters),
            "family": named_after.block.family,
            "match": config.match,
            "match_length": _match_length(config),
        },
        "blocks": [mixers[word].describe() for word in sorted(set(words))],
        "block_files": folder.block_files(),
        "seed": config.seed,
        "parameters": cost.parameters(model),
        "parameters_non_embedding": cost.parameters_non_embedding(model),
        "flops_per_token": {"forward": costs.forward_flops, "training": costs.training_flops},
        "state_bytes": {str(tokens): size for tokens, size in costs.state_bytes.items()},
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(device),
        "command": machine.command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _match_length(config: Config) -> int | None:
    """The length at which FLOPs or decode state were matched; None where neither was."""
    return None if config.match in (None, "params") else config.match_length or config.data.seq_len


# A plan as plain values, from which another process trains the run.


def to_record(planned: Plan) -> dict[str, Any]:
    """The plan as values that JSON holds, without its folder."""
    return {
        "letters": planned.letters,
        "identity": planned.identity,
        "config": dataclasses.asdict(planned.config),
    }


RECORD = {"letters": str, "identity": {str: object}, "config": {str: object}}
"""The schema of a record (`zoo.files.fit`)."""


def from_record(record: dict[str, Any], folder: Path) -> Plan:
    """The plan in a record of the schema RECORD, for the run in `folder`.

    Raises UserError where the configuration is none of this version.
    """
    config = from_dict(Config, record["config"], "config")
    return Plan(config, record["letters"], record["identity"], RunFolder(folder))

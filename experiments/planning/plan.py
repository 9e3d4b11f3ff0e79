"""A configuration becomes a planned run: keys that others set are resolved, mistakes refused, its folder found.

`plan` is the entry, and reads as the contents of this page. What decides a run's result is `planning.identity`.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.util
import operator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from experiments import data, runs
from experiments.configuration.compose import label
from experiments.configuration.schema import HELD_OUT, Config, OptimConfig, ProbeConfig, TrainerConfig
from experiments.costs.device_memory import check_fits
from experiments.data import TASKS
from experiments.parallel import group
from experiments.planning.identity import folder_of, identify
from experiments.runs import SUMMARY, RunFolder
from experiments.system import paths
from experiments.system.paths import PUBLISHED, SELECTION
from zoo import cost, registry
from zoo.backends import TRAINING, check_backend
from zoo.config import Architecture, ModelConfig, architecture_of, from_dict
from zoo.errors import UserError, unknown
from zoo.interfaces import grouped_parameters
from zoo.matching import match, plain_transformer
from zoo.model import LanguageModel, meta_model
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
    layers: Architecture
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
        return f"{label(self.config, self.layers)} seed {self.config.seed}"

    def yaml(self) -> str:
        """The whole resolved configuration."""
        return OmegaConf.to_yaml(OmegaConf.structured(self.config))


def plan(config: Config) -> Plan:
    """The run of a configuration, checked, with its folder found. Raises UserError; writes nothing."""
    check_limits(config)
    config = resolve(config)
    layers = check_config(config).architecture
    identity = identify(config, layers, fingerprint(config.data))
    return Plan(config, layers, *folder_of(config, identity))


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
    rate = studied_rate(study, label(config, architecture_of(config.model)))
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


def check_config(config: Config) -> LanguageModel:
    """Refuse what cannot work: sizes that do not fit, data and devices that are not there; returns the model on meta.

    Raises UserError.
    """
    check_writable(config.results, "results")
    _check_schedule(config)
    _check_scores(config)
    _check_together(config)
    _check_loggers(config)
    check_probe(config.probe)
    if config.trainer.probe_every is not None:
        check_measures()
    device = group.check(config)
    check_served(config, device)
    # Every module's own checks, such as heads that divide the width.
    model = meta_model(config.model, **config.sizes)
    if config.start.indexer and not any(of.clip == "indexer" for _, of, _ in grouped_parameters(model)):
        raise UserError(
            f"start.indexer={config.start.indexer}: no block of this model has an indexer; leave it out"
        )
    if device is not None:
        check_fits(config, model, device)
    check_data(config.data)
    return model


def check_served(
    config: Config,
    device: torch.device | None,
    model: ModelConfig | None = None,
    uses: tuple[str, ...] = TRAINING,
) -> None:
    """Refuse a backend that does not serve a model (None: the configuration's) in these uses.

    device: where it computes; None: on another machine, so that a form of each operation by that name will do.
    Raises UserError.
    """
    model = model or config.model
    if model.backend == "auto":
        return
    half = device is not None and group.pick_precision(config.trainer.precision, device) == "bf16"
    packed = config.data.name not in TASKS and config.data.pack == "document"
    _check_backend(model, uses, seq_len=config.data.seq_len, device=device, half=half, packed=packed)


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


# A plan as plain values, from which another process trains the run.


def to_record(planned: Plan) -> dict[str, Any]:
    """The plan as values that JSON holds, without its folder."""
    return {
        "identity": planned.identity,
        "config": dataclasses.asdict(planned.config),
    }


RECORD = {"identity": {str: object}, "config": {str: object}}
"""The schema of a record (`zoo.files.fit`)."""


def from_record(record: dict[str, Any], folder: Path) -> Plan:
    """The plan in a record of the schema RECORD, for the run in `folder`.

    Raises UserError where the configuration is none of this version.
    """
    config = from_dict(Config, record["config"], "config")
    return Plan(config, architecture_of(config.model), record["identity"], RunFolder(folder))

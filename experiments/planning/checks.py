"""Refusing configurations that cannot work, before anything is done."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import math
from pathlib import Path

import torch

from experiments import data, runs
from experiments.configuration.schema import Config, ProbeConfig, SweepConfig
from experiments.data import TASKS
from experiments.parallel.group import check_devices, pick_device, pick_precision
from experiments.runs import NOT_EXPERIMENTS
from kernels.dispatch import registered_backends
from zoo import recompute, registry
from zoo.backends import TRAINING, check_backend
from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError, unknown
from zoo.model import on_meta

# Settings of `sweep`.


def check_sweep(sweep: SweepConfig) -> None:
    """Refuse what an engine cannot do with, and times that leave none to train. Raises UserError."""
    _check_choices(sweep)
    _check_numbers(sweep)
    if sweep.action != "wait" and sweep.engine not in ("slurm", "ray"):
        raise UserError(
            f"sweep.action={sweep.action} is of sweep.engine=slurm and ray, whose cells outlive it; leave it out"
        )
    brief = {"slurm": f"slurm.cluster={sweep.slurm.cluster}", "ray": f"ray.address={sweep.ray.address}"}
    if sweep.action == "submit" and brief[sweep.engine].endswith("=local"):
        raise UserError(
            f"sweep.action=submit leaves cells to a cluster, and sweep.{brief[sweep.engine]} is this machine"
        )
    if not 60 * sweep.slurm.minutes > sweep.slurm.signal_s:
        raise UserError(
            f"sweep.slurm.minutes={sweep.slurm.minutes:g} leaves no time before sweep.slurm.signal_s="
            f"{sweep.slurm.signal_s}; raise the first or lower the second"
        )
    bad = [option for option in sweep.slurm.more if not option.partition("=")[2]]
    if bad:
        raise UserError(f"sweep.slurm.more has {bad[0]!r}; write options as name=value, e.g. constraint=a100")


def _check_choices(sweep: SweepConfig) -> None:
    for key, value, known in (
        ("engine", sweep.engine, ("pool", "slurm", "ray", "list")),
        ("action", sweep.action, ("wait", "submit", "cancel")),
        ("slurm.cluster", sweep.slurm.cluster, ("slurm", "local")),
    ):
        if value not in known:
            raise unknown(f"sweep.{key}", value, known)


def _check_numbers(sweep: SweepConfig) -> None:
    slurm, ray = sweep.slurm, sweep.ray
    for key, value, least in (
        ("retries", sweep.retries, 0),
        ("slurm.signal_s", slurm.signal_s, 1),
        ("slurm.requeues", slurm.requeues, 0),
        ("slurm.cpus", slurm.cpus, 1),
        ("slurm.gpus", slurm.gpus, 0),
        ("slurm.jobs", slurm.jobs, 1),
        ("ray.cpus", ray.cpus, 0),
        ("ray.gpus", ray.gpus, 0),
    ):
        if value < least:
            raise UserError(f"sweep.{key}={value} must be at least {least}")
    for key, value in (
        ("slurm.poll_s", slurm.poll_s),
        ("ray.poll_s", ray.poll_s),
        ("slurm.memory_gb", slurm.memory_gb),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"sweep.{key}={value} must be a number above 0")
    for key, value in (("cpus", ray.cpus), ("gpus", ray.gpus)):
        if value > 1 and not value.is_integer():
            raise UserError(
                f"sweep.ray.{key}={value:g}: Ray shares out parts of one only; give {math.ceil(value)}"
            )


# All other settings.

ROUTING_SPLITS = ("validation", "test")
_SEEDS = 2**63
_LOGGERS = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
}  # packages, of which one is needed


def check_config(config: Config) -> None:
    """Refuse what cannot work: unknown names, sizes that do not fit, data that is not there. Raises UserError."""
    for kind, choice in (("residual", config.model.residual.name), ("channel", config.model.channel.name)):
        registry.get(kind, choice)
    _check_data(json.dumps(dataclasses.asdict(config.data), sort_keys=True))
    check_numbers(config)
    check_probe(config.probe)
    if config.trainer.probe_every is not None:
        check_measures()
    check_choices(config)
    _check_scores(config)
    _check_task(config)
    _check_compiled(config)
    _check_devices(config)
    _check_place(config)
    _check_loggers(config)
    if config.sweep != SweepConfig():  # the defaults are right
        check_sweep(config.sweep)
    _check_model(json.dumps(dataclasses.asdict(config.model)), config.nominal_vocabulary, config.data.seq_len)
    check_served(config, here=config.sweep.engine == "pool")


@functools.lru_cache(maxsize=64)
def _check_data(config_json: str) -> None:
    """Once a data configuration: the cells of a sweep mostly share it."""
    data.check(from_dict(data.DataConfig, json.loads(config_json), "data"))


@functools.lru_cache(maxsize=64)
def _check_model(config_json: str, vocab_size: int, seq_len: int) -> None:
    """Once a model: building it without storage runs every module's own checks (heads that divide the width, say)."""
    on_meta(from_dict(ModelConfig, json.loads(config_json)), vocab_size=vocab_size, seq_len=seq_len)


def check_served(
    config: Config, model: ModelConfig | None = None, uses: tuple[str, ...] = TRAINING, *, here: bool = True
) -> None:
    """Refuse a backend that does not serve a model (None: the configuration's) in these uses.

    here: on this machine; else a form of each operation by that name will do. Raises UserError.
    """
    model = model or config.model
    if model.backend == "auto":
        return
    device = pick_device(config.device) if here else None
    half = device is not None and pick_precision(config.trainer.precision, device) == "bf16"
    packed = config.data.name not in TASKS and config.data.pack == "document"
    values = json.dumps(dataclasses.asdict(model))
    _check_served(values, config.data.seq_len, device, half, packed, uses)


@functools.lru_cache(maxsize=64)
def _check_served(
    config_json: str,
    seq_len: int,
    device: torch.device | None,
    half: bool,
    packed: bool,
    uses: tuple[str, ...],
) -> None:
    """Once a model and a place where it is computed."""
    config = from_dict(ModelConfig, json.loads(config_json))
    check_backend(config, uses, seq_len=seq_len, device=device, half=half, packed=packed)


def check_numbers(config: Config) -> None:
    """Refuse numbers out of range, `probe` left out (`check_probe`). Raises UserError."""
    least = {
        "trainer.max_steps": 1,
        "trainer.accumulate": 1,
        "trainer.log_every": 1,
        "trainer.val_every": 1,
        "trainer.val_tokens": 1,
        "trainer.checkpoint_every": 1,
        "trainer.probe_every": 1,
        "trainer.patience": 1,
        "trainer.pause_at": 1,
        "trainer.threads": 1,
        "trainer.recompute_block": 1,
        "trainer.devices": 1,
        "trainer.context": 1,
        "trainer.nodes": 1,
        "optim.warmup_steps": 0,
        "sweep.workers": 1,
        "evaluate.stride": 1,
        "evaluate.windows": 1,
        "evaluate.batch_size": 1,
    }
    for key, low in least.items():
        value = functools.reduce(getattr, key.split("."), config)
        if value is not None and value < low:
            raise UserError(f"{key}={value} must be at least {low}")
    check_seed(config.seed)
    beyond = [step for step in config.trainer.keep_steps if not 1 <= step <= config.trainer.max_steps]
    if beyond:
        raise UserError(
            f"trainer.keep_steps has {beyond[0]}; give steps from 1 to trainer.max_steps={config.trainer.max_steps}"
        )
    for key in ("lr", "clip", "eps"):
        if not 0 < getattr(config.optim, key) < math.inf:
            raise UserError(f"optim.{key}={getattr(config.optim, key)} must be a number above 0")
    for key in ("lr_min", "weight_decay"):
        if not 0 <= getattr(config.optim, key) < math.inf:
            raise UserError(f"optim.{key}={getattr(config.optim, key)} must be a number of at least 0")
    for key in ("beta1", "beta2"):
        if not 0 <= getattr(config.optim, key) < 1:
            raise UserError(f"optim.{key}={getattr(config.optim, key)} must be at least 0 and below 1")
    minutes = config.trainer.max_minutes
    if minutes is not None and not minutes > 0:
        raise UserError(f"trainer.max_minutes={minutes} must be above 0 (null: no limit)")
    if config.optim.lr_min > config.optim.lr:
        raise UserError(f"optim.lr_min={config.optim.lr_min} is above optim.lr={config.optim.lr}; lower it")
    if (config.evaluate.stride or 1) > config.data.seq_len:
        raise UserError(
            f"evaluate.stride={config.evaluate.stride} is above data.seq_len={config.data.seq_len}; "
            "tokens between windows would never be scored"
        )


def check_seed(seed: int) -> None:
    """Refuse a seed that generators do not take, with room for the seeds that follow it. Raises UserError."""
    if not 0 <= seed < _SEEDS:
        raise UserError(f"seed={seed} must be from 0 to {_SEEDS - 1}")


def check_choices(config: Config) -> None:
    """Refuse values that are none of an option's choices, and unusable experiment names. Raises UserError."""
    choices = {
        "device": (config.device, ("auto", "cpu", "cuda")),
        "trainer.precision": (config.trainer.precision, ("auto", "fp32", "bf16")),
        "trainer.recompute": (config.trainer.recompute, recompute.MODES),
        "trainer.strategy": (config.trainer.strategy, ("auto", "ddp", "fsdp")),
        "model.backend": (config.model.backend, ("auto", *registered_backends())),
        **{f"trainer.loggers[{i}]": (x, tuple(_LOGGERS)) for i, x in enumerate(config.trainer.loggers)},
        **{
            f"evaluate.splits[{i}]": (x, ("validation", "test")) for i, x in enumerate(config.evaluate.splits)
        },
    }
    for key, (value, known) in choices.items():
        if value not in known:
            raise unknown(key, value, known)
    if not config.name or any(c in config.name for c in "/\\") or config.name.startswith("."):
        raise UserError(f"name={config.name!r} must be one plain folder name, e.g. name=my_experiment")
    if config.name in NOT_EXPERIMENTS:
        raise UserError(
            f"name={config.name}: results/{config.name} is no place for runs; give another, e.g. name=my_experiment"
        )
    if not config.results:
        raise UserError("results= is empty; give a folder, or leave it out for results")


def _check_scores(config: Config) -> None:
    """The scores that runs record are all of windows, or they could not be compared."""
    if config.evaluate.carry:
        raise UserError(
            "evaluate.carry=true is of job=evaluate; runs record scores of windows: leave it out, and evaluate the "
            "finished run with it"
        )


def _check_task(config: Config) -> None:
    """Refuse what is of text for a synthetic task."""
    if config.data.name not in TASKS:
        return
    for key, value in (
        ("trainer.probe_every", config.trainer.probe_every),
        ("evaluate.stride", config.evaluate.stride),
    ):
        if value is not None:
            raise UserError(f"{key}={value} is of text, and data={config.data.name} has none; leave it out")


def _check_compiled(config: Config) -> None:
    """torch.compile decides itself which activations to save, and ignores the hooks of recomputing."""
    if config.trainer.compile and config.trainer.recompute != "none":
        raise UserError(
            f"trainer.recompute={config.trainer.recompute} does not go with trainer.compile=true; leave one of them out"
        )


def _check_devices(config: Config) -> None:
    """Refuse devices that are absent, or that micro-batches cannot be dealt to; and what needs a whole model."""
    t = config.trainer
    processes = t.processes
    _check_context(config, processes)
    if processes == 1:
        return
    replicas, together = processes // t.context, "" if t.context == 1 else f" in groups of {t.context}"
    if t.accumulate % replicas:
        raise UserError(
            f"trainer.accumulate={t.accumulate} micro-batches a step cannot be shared by {processes} devices{together}"
            f"; give a multiple, trainer.accumulate={replicas * -(-t.accumulate // replicas)}, and a data.batch_size "
            "as much smaller for a step of the same size"
        )
    _check_engine(config)
    if t.strategy == "fsdp" and t.compile:
        raise UserError("trainer.strategy=fsdp does not go with trainer.compile=true; leave one of them out")
    if t.strategy == "fsdp" and t.probe_every is not None:
        raise UserError(
            "trainer.probe_every probes a whole model, and with trainer.strategy=fsdp no process has one; leave it "
            "out, keep weights with trainer.keep_steps, and probe the finished run (job=probe probe.at=STEP)"
        )


def _check_engine(config: Config) -> None:
    """Refuse devices and nodes that the sweep's engine gives no cell; those of other machines are not looked at."""
    t, engine = config.trainer, config.sweep.engine
    if engine == "pool":
        check_devices(config.device, t.devices)
    if engine not in ("slurm", "ray"):
        return
    if t.nodes > 1:
        raise UserError(
            f"trainer.nodes={t.nodes}: sweep.engine={engine} gives a cell one node; leave the engine out and give the "
            "command on every node (docs/devices.md)"
        )
    gpus = config.sweep.slurm.gpus if engine == "slurm" else config.sweep.ray.gpus
    if gpus < t.devices and (config.device == "cuda" or (config.device == "auto" and gpus)):
        raise UserError(
            f"trainer.devices={t.devices}, but sweep.{engine}.gpus={gpus:g}; give sweep.{engine}.gpus={t.devices}"
        )


def _check_context(config: Config, processes: int) -> None:
    """Refuse shards of sequences that cannot be cut, and what needs whole sequences."""
    n, length = config.trainer.context, config.data.seq_len
    if n == 1:
        return
    if processes % n:
        raise UserError(
            f"trainer.context={n} devices hold a sequence together, and there are {processes} (trainer.devices times "
            f"trainer.nodes); give a divisor of them, or trainer.devices={n}"
        )
    if length % n:
        raise UserError(
            f"trainer.context={n} does not cut data.seq_len={length} into equal shards; give a length that it divides, "
            f"data.seq_len={n * -(-length // n)}"
        )
    if config.data.name in TASKS:
        raise UserError(
            f"trainer.context={n} is for texts; sequences of data={config.data.name} are short: leave it out"
        )
    if config.trainer.compile:
        raise UserError(f"trainer.context={n} does not go with trainer.compile=true; leave one of them out")


def _check_place(config: Config) -> None:
    """Refuse a device that is absent, where cells train here, and a results folder that is a file or lies in one."""
    if config.sweep.engine == "pool":  # elsewhere cells train on other machines than this one
        pick_device(config.device)
    results = Path(config.results).absolute()
    for place in (results, *results.parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(f"results={config.results}: {place} is a file; give a folder")
            break


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
    """Refuse values of the node `probe` that are out of range, or none of its choices. Raises UserError."""
    if probe.at is not None:
        runs.check(probe.at)
    counts = (
        "windows",
        "batch_size",
        "long_windows",
        "extrapolate",
        "map_tokens",
        "routing_tokens",
        "tokens",
        "top_k",
    )
    for key in counts:
        value = getattr(probe, key)
        if value is not None and value < 1:
            raise UserError(f"probe.{key}={value} must be at least 1")
    if not 0 < probe.stream_energy <= 1:
        raise UserError(f"probe.stream_energy={probe.stream_energy} must lie above 0 and at most at 1")
    if not 0 <= probe.temperature < math.inf:
        raise UserError(
            f"probe.temperature={probe.temperature} must be 0 (most likely token) or a number above"
        )
    if probe.routing_split not in (None, *ROUTING_SPLITS):
        raise unknown("probe.routing_split", probe.routing_split, ROUTING_SPLITS)
    if probe.sentence is not None and not probe.sentence.strip():
        raise UserError("probe.sentence is empty; give a text, or leave it out for a held-out one")

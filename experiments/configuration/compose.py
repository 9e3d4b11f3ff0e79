"""Composing configurations from conf/ and the command line, with Hydra."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf

from experiments.configuration import schema
from experiments.configuration.presets import presets_to_compare
from experiments.configuration.unused_options import OPTIONS, unused_options
from experiments.data import TASKS, resolve_task
from experiments.system.paths import CONF
from zoo.errors import UserError


def compose(
    describe_jobs: Callable[[], str] = str, notify: Callable[[str], None] | None = None
) -> list[schema.Config]:
    """The configurations that the command line asks for: one, or all cells of a sweep. Runs nothing.

    An empty list where Hydra answered the command by itself (--help, --cfg, --info). describe_jobs: returns the lines
    of --help about jobs; called only for --help; notify: called with a line for each option that no cell uses.

    Raises UserError for mistakes that Hydra states by a plain ValueError, and Hydra's own errors for others.

    Hydra's own sweeper composes the cells, each into a function that only collects them, so that a mistake in the
    last cell is found before the first one runs.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting by itself
    # Hydra would compose every cell once more, to find mistakes early; here no cell runs before all are composed.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    schema.register()
    OmegaConf.register_new_resolver("describe_jobs", describe_jobs, replace=True)  # in conf/config.yaml
    OmegaConf.register_new_resolver(
        "architectures", lambda: ",".join(presets_to_compare()), replace=True
    )  # in its sweeps
    OmegaConf.register_new_resolver("for_size", for_size, replace=True)
    OmegaConf.register_new_resolver("headlines", lambda: ",".join(headlines()), replace=True)
    composed: list[DictConfig] = []
    chosen: list[DictConfig] = []
    words: list[str] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def collect(node: DictConfig) -> None:
        words.extend(HydraConfig.get().overrides.task)
        chosen.append(HydraConfig.get().runtime.choices)
        composed.append(node)  # nothing that can fail, or Hydra would print about it

    with tempfile.TemporaryDirectory() as folder, _help_texts_unchecked():
        os.environ["ARCHZOO_SWEEP_FOLDER"] = folder
        try:
            collect()
        except SystemExit as end:  # after --help
            if end.code:
                raise
        except ValueError as error:
            if (line := _explained(error)) is None:
                raise
            raise UserError(line) from error
    for choices in chosen:
        check_recipe(choices.recipe, choices.data)
    configs = [to_config(node) for node in composed]
    given = frozenset(word.partition("=")[0].lstrip("+~") for word in words)
    for config in configs:
        config.given = given
    if notify and any(key.startswith(OPTIONS) for key in given):
        for line in unused_options(words, configs):
            notify(line)
    return configs


def _explained(error: ValueError) -> str | None:
    """What Hydra says by a plain ValueError, of its flags and of choices, with the remedy; None for anything else."""
    if str(error).startswith("Only one of --"):
        return f"{error}; leave --multirun out to see a configuration"
    if str(error).startswith("Config group override"):  # model=null, size=1
        return (
            "model, size, data, recipe and +experiment each take the name of a choice (job=list shows them); leave out "
            "recipe and +experiment for none"
        )
    return None


def check_recipe(recipe: str | None, data: str) -> None:
    """Refuse a recipe that has nothing for the data. Raises UserError."""
    known = sorted(path.stem for path in (CONF / "recipe" / str(recipe)).glob("*.yaml"))
    if recipe is not None and data not in known:
        raise UserError(
            f"recipe={recipe} has no settings for data={data}, only for {', '.join(known)}; leave it out"
        )


def headlines() -> list[str]:
    """The headlines of papers that there are, conf/headline/NAME.yaml: `headline: ${headlines:}`."""
    return sorted(path.stem for path in (CONF / "headline").glob("*.yaml"))


def for_size(size: str, here: str, otherwise: str, _root_: DictConfig) -> str:
    """In sweeps of an experiment: the one value where the command says size=SIZE, else the other."""
    return here if _root_.hydra.runtime.choices["size"] == size else otherwise


def to_config(node: DictConfig) -> schema.Config:
    """The typed configuration of a composed node, with the vocabulary and the length of its task.

    Raises ConfigKeyError for keys added with a plus, and UserError for keys that its task has no use for.
    """
    config: schema.Config = OmegaConf.to_object(node)  # type: ignore[assignment]
    if _has_more_than_fields(config):  # merging, ten times as slow, names the key
        OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.to_container(node, resolve=True))
    if config.data.name in TASKS:
        config.data = resolve_task(config.data)
    for key in ("results", "run", "runs"):  # a shell leaves ~ in quotes alone
        if place := getattr(config, key):
            setattr(config, key, os.path.expanduser(place))
    return config


def _has_more_than_fields(options: object) -> bool:
    """Whether a dataclass, or one among its values, has attributes that it does not declare."""
    if not dataclasses.is_dataclass(options):
        return False
    values, declared = vars(options), options.__dataclass_fields__
    return not values.keys() <= declared.keys() or any(map(_has_more_than_fields, values.values()))


@contextlib.contextmanager
def _help_texts_unchecked() -> Iterator[None]:
    """While inside, argparse does not check help texts when arguments are added, as it does from Python 3.14 on.

    Hydra 1.3 adds an argument whose help text is made when it is printed and is no string until then: every command
    would fail.
    """
    check = getattr(argparse.ArgumentParser, "_check_help", None)
    if check is None:
        yield
        return
    argparse.ArgumentParser._check_help = lambda *_: None
    try:
        yield
    finally:
        argparse.ArgumentParser._check_help = check

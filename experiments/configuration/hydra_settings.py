"""Having Hydra compose configurations, which is all that it does here; its flags, settings and keys that are refused.

Its launchers, sweepers, folders and logs would be taken and have no effect, or another one than was asked for.
Nothing here imports PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf

from experiments.system.paths import CONF

SWEEP_FOLDER = "ARCHZOO_SWEEP_FOLDER"
"""Environment variable of the folder that Hydra's sweeper may write to (conf/config.yaml)."""

_ALLOWED = ("hydra.mode", "hydra.searchpath")
_PLACE = "a run lies in RESULTS/NAME/RUN; give results=FOLDER and name=NAME"
_NO_LOG = "nothing is logged (a command speaks in the terminal, a run in its metrics.csv); leave it out"
_WAYS = {
    "launcher": "sweep.engine=pool, slurm, ray or list says what runs a sweep's cells, sweep.workers how many at once",
    "sweeper": "write a sweep's values out (optim.lr=1e-3,3e-3), or select among them with job=compare; what runs the "
    "cells is sweep.engine=pool, slurm, ray or list",
    "run": _PLACE,
    "sweep": _PLACE,
    "output_subdir": _PLACE,
    "job.name": _PLACE,
    "job.chdir": _PLACE,
    "job_logging": _NO_LOG,
    "hydra_logging": _NO_LOG,
    "verbose": _NO_LOG,
}
_PLAIN = {
    "launcher._target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "sweeper._target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "sweeper.max_batch_size": None,
    "run.dir": ".",
    "sweep.dir": None,  # the value of SWEEP_FOLDER
    "sweep.subdir": ".",
    "output_subdir": None,
    "job.chdir": False,
    "job.env_set": {},
    "job_logging.handlers": None,
    "hydra_logging.handlers": None,
    "verbose": False,
}
"""Settings below hydra as conf/config.yaml leaves them; other files may set them too."""


def way(key: str) -> str:
    """What to give instead of a setting of Hydra's, "hydra/launcher" or "hydra.run.dir"."""
    name = re.sub(r"^hydra[./]", "", key)
    return next(
        (found for start, found in _WAYS.items() if f"{name}.".startswith(f"{start}.")), "leave it out"
    )


def _refusal(key: str) -> str:
    return f"{key} has no effect here, where Hydra only composes configurations: {way(key)}"


class Refused(BaseException):
    """A setting is refused. No Exception: Hydra turns those of its callbacks into warnings, and goes on."""


class OnlyComposing(Callback):
    """Hydra's callback (conf/config.yaml) that refuses settings, from files as well, before Hydra does anything."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Raise Refused for a setting of one run."""
        self.on_multirun_start(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Raise Refused for a setting of a sweep."""
        for key, plain in {**_PLAIN, "sweep.dir": os.environ[SWEEP_FOLDER]}.items():
            if OmegaConf.select(config.hydra, key) != plain:
                raise Refused(_refusal(f"hydra.{key}"))


def read_command(words: Sequence[str]) -> argparse.Namespace:
    """The flags and overrides of a command line. Raises UserError for those that Hydra would take and ignore."""
    parser = get_args_parser()
    # Instead of its usage and an exit.
    parser.error = lambda text: _refuse(f"{text}; flags (--hydra-help) stand before the keys")  # type: ignore[method-assign]
    flags = parser.parse_args(list(words))
    if flags.experimental_rerun is not None:
        _refuse(
            "--experimental-rerun has nothing to repeat: the same command goes on with its runs; leave it out"
        )
    for flag in ("package", "resolve"):
        if getattr(flags, flag) and not (flags.cfg or flags.help):
            _refuse(
                f"--{flag} is of --cfg, which shows a configuration; give --cfg job with it, or leave it out"
            )
    if flags.cfg and flags.multirun:
        _refuse(
            "--cfg shows one configuration; leave --multirun out to see a configuration, or list a sweep's cells with "
            "dry=true"
        )
    if flags.multirun and "hydra.mode=RUN" in flags.overrides:
        _refuse("--multirun is a sweep and hydra.mode=RUN a single run; leave one of them out")
    if not shows(flags):
        _check_words(flags.overrides)
    return flags


def shows(flags: argparse.Namespace) -> bool:
    """Return whether a command only has something shown by Hydra, so that nothing is run."""
    return bool(flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion)


def _check_words(words: Sequence[str]) -> None:
    """Refuse Hydra's settings, and keys that are given twice: the first value would be lost. Raises UserError."""
    before: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if re.match(r"hydra\b", key) and key not in _ALLOWED:
            _refuse(_refusal(key))
        for other, first in before.items():
            if key == other:
                _refuse(
                    f"{key} is given twice, {first} and {word}; give it once (values of a sweep: {key}=A,B,C)"
                )
            outer = min(key, other, key=len)
            if max(key, other, key=len).startswith(f"{outer}.") and not (CONF / outer).is_dir():
                _refuse(f"{first} and {word} both set {outer}; give its keys one by one")
        before[key] = word


def no_cells(words: Sequence[str]) -> Exception:
    """The error to raise for a sweep without a cell."""
    empty = [word for word in words if re.search(r"\b(glob|range|choice)\(", word)]
    return _mistake(
        f"the sweep has no cells: no value matches {', '.join(empty) or 'what it goes through'}; range(A,B) ends "
        "before B, and glob(...) chooses among the names of a group (model=glob(kda*); job=list shows them)"
    )


def check_plugins() -> None:
    """Have Hydra import the plugins that are installed. Raises UserError where one fails: Hydra imports all of them."""
    try:
        Plugins.instance()
    except Exception as error:
        trace, names = error.__traceback__, []
        while trace is not None:
            names += re.findall(r"\bhydra_plugins\.(\w+)", str(trace.tb_frame.f_globals.get("__name__")))
            trace = trace.tb_next
        raise _mistake(
            f"Hydra imports every plugin that is installed, and {names[-1] if names else 'one'} fails "
            f"({type(error).__name__}: {error}); uninstall it"
        ) from error


# Having Hydra compose.


def collect(words: Sequence[str]) -> tuple[argparse.Namespace, list[DictConfig], list[DictConfig]]:
    """Have Hydra answer `sys.argv`, whose words these are: its flags, the composed nodes and the settings of each.

    No nodes where Hydra printed what was asked for (--help, --cfg, --info). The schema has to be in its ConfigStore.
    Hydra's own sweeper composes the cells, each into a function that only collects them, so that a mistake in the last
    cell is found before the first one runs.

    Raises UserError for what Hydra would take and ignore and for mistakes that it states by a plain ValueError, and
    Hydra's own errors for others.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting by itself
    # Hydra would compose every cell once more, to find mistakes early; here no cell runs before all are composed.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    composed: list[DictConfig] = []
    settings: list[DictConfig] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def add(node: DictConfig) -> None:
        settings.append(HydraConfig.get())
        composed.append(node)  # nothing that can fail, or Hydra would print about it

    with tempfile.TemporaryDirectory() as folder, _help_texts_unchecked():
        os.environ[SWEEP_FOLDER] = folder
        flags = read_command(words)
        check_plugins()
        try:
            add()
        except SystemExit as end:  # after --help
            if end.code:
                raise
        except Refused as refusal:
            raise _mistake(str(refusal)) from None
        except ValueError as error:
            if (line := _explained(error)) is None:
                raise
            raise _mistake(line) from error
    return flags, composed, settings


def _explained(error: ValueError) -> str | None:
    """Explain a plain ValueError of Hydra's, about its flags or choices, with the remedy; None for anything else."""
    if str(error).startswith(("Only one of --", "Expecting one subcommand", "No completion plugin")):
        return str(error)
    if str(error).startswith("Config group override"):  # model=null, size=1
        return (
            "model, size, data, recipe and +experiment each take the name of a choice (job=list shows them); leave out "
            "recipe and +experiment for none"
        )
    return None


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


def _refuse(message: str) -> NoReturn:
    raise _mistake(message)


def _mistake(message: str) -> Exception:
    from zoo.errors import UserError  # zoo imports torch; a command that is refused nothing needs it later

    return UserError(message)


# Keys that there are not.


def unknown_key(key: str, keys: list[str]) -> str:
    """The line about a key that is not among the known `keys`: which one may have been meant, or which there are."""
    node = key.rpartition(".")[0]
    meant = " or ".join(f"'{k}'" for k in _similar_keys(key, keys))
    if meant:
        return f"unknown key '{key}'; did you mean {meant}?"
    if node in keys:
        return f"unknown key '{key}'; {node} has {', '.join(_keys_of(node, keys))}"
    return f"unknown key '{key}'; `python run.py --cfg job` shows all keys"


def _similar_keys(key: str, known: list[str]) -> list[str]:
    """Up to three keys that may have been meant by an unknown one; none where nothing is alike.

    Those with the same last word deeper inside the same node (model.residual.iters: model.residual.mhc.iters); else the
    one of the node that is written most alike (probe.window: probe.windows); else those with the same last word
    anywhere (lr: optim.lr); else the key that is written most alike, if the node is unknown. A node in which one
    chooses is meant by its name (residual: model.residual.name).
    """
    node, _, word = key.rpartition(".")
    same = [k for k in known if k.rpartition(".")[2] == word]
    inside = [k for k in same if node and k.startswith(f"{node}.")]
    alike = (
        [f"{node}.{k}" for k in difflib.get_close_matches(word, _keys_of(node, known), n=1)] if node else []
    )
    found = difflib.get_close_matches(key, inside, n=3, cutoff=0.0) or alike
    found = found or difflib.get_close_matches(key, same, n=3, cutoff=0.0)
    if not found and node not in known:
        found = difflib.get_close_matches(key, known, n=1)
    return [f"{k}.name" if f"{k}.name" in known else k for k in found]


def _keys_of(node: str, known: list[str]) -> list[str]:
    """The last words of the keys right inside a node."""
    return [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == node]

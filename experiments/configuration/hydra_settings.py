"""What is refused of Hydra's own flags and settings: it composes configurations here and does nothing else.

Its launchers, sweepers, folders and logs would be taken and have no effect, or another one than was asked for.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from experiments.system.paths import CONF
from zoo.errors import UserError

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


def no_cells(words: Sequence[str]) -> UserError:
    """The error to raise for a sweep without a cell."""
    empty = [word for word in words if re.search(r"\b(glob|range|choice)\(", word)]
    return UserError(
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
        raise UserError(
            f"Hydra imports every plugin that is installed, and {names[-1] if names else 'one'} fails "
            f"({type(error).__name__}: {error}); uninstall it"
        ) from error


def _refuse(message: str) -> NoReturn:
    raise UserError(message)

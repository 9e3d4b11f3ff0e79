"""Having Hydra compose configurations, which is all that it does here; its flags, settings and keys that are refused.

Its launchers, sweepers, folders and logs would be taken and have no effect, or another one than was asked for.
Nothing here imports PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import difflib
import itertools
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from experiments.system import signals
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
        (advice for start, advice in _WAYS.items() if f"{name}.".startswith(f"{start}.")), "leave it out"
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
    parser.allow_abbrev = False  # --hydra would be --hydra-help
    parser.error = _refuse_flag  # type: ignore[method-assign]  # instead of its usage and an exit
    flags = parser.parse_args(list(words))
    if flags.experimental_rerun is not None:
        _refuse("--experimental-rerun is not supported: repeat the command to resume its runs; leave it out")
    for flag in ("package", "resolve"):
        if getattr(flags, flag) and not (flags.cfg or flags.help):
            _refuse(
                f"--{flag} works only with --cfg, which shows a configuration; give --cfg job with it, or leave it out"
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


def _refuse_flag(text: str) -> NoReturn:
    """Raise UserError for what argparse says of a flag: which key or flag may have been meant."""
    flag = next((word for word in re.findall(r"\S+", text.partition("arguments:")[2]) if word[0] == "-"), "")
    if not flag:
        _refuse(f"{text}; flags (--hydra-help) stand before the keys")
    name, equals, _ = flag.lstrip("-").partition("=")
    key = name.replace("-", "_")
    if equals:
        _refuse(
            f"there is no flag {flag}; keys have no dashes: did you mean '{key}{flag[flag.index('=') :]}'?"
        )
    known = [word for action in get_args_parser()._actions for word in action.option_strings]
    alike = difflib.get_close_matches(flag, known, n=1, cutoff=0.75)
    meant = f"did you mean '{alike[0]}'?" if alike else "--help shows what there is"
    _refuse(f"there is no flag {flag}; {meant}; a key is given without dashes, {key}=VALUE")


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
        if word.startswith("~"):
            _refuse(f"{word} would take out what every run needs; leave it out for the default of {key}")
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


@dataclasses.dataclass(frozen=True)
class Composed:
    """A configuration that Hydra composed: `node`, with the values of `changed`, by dotted key, in place of its own.

    Cells of a sweep that make the same choices share their node. choices: the choice of each group; words: overrides of
    the command line and of an experiment's sweep; sweeps: whether it is a cell of a sweep.
    """

    node: DictConfig
    changed: dict[str, Any]
    choices: dict[str, Any]
    words: tuple[str, ...]
    sweeps: bool


def collect(words: Sequence[str]) -> tuple[argparse.Namespace, list[Composed]]:
    """Have Hydra answer `sys.argv`, whose words these are: its flags, and what it composed.

    Nothing where Hydra printed what was asked for (--help, --cfg, --info). The schema has to be in its ConfigStore.
    Hydra's own sweeper makes the cells, which are only collected, so that a mistake in the last one is found before the
    first one runs.

    Raises UserError for what Hydra would take and ignore and for mistakes that it states by a plain ValueError, and
    Hydra's own errors for others.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting by itself
    # Hydra would compose every cell once more, to find mistakes early; here no cell runs before all are composed.
    Sweeper.validate_batch_is_legal = lambda *_: None  # type: ignore[method-assign]
    composed: list[Composed] = []

    def add_cells(launcher: Launcher, cells: Sequence[Sequence[str]], initial_job_idx: int) -> list:
        composed.extend(_cells(launcher, cells))
        return []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def add(node: DictConfig) -> None:
        settings = HydraConfig.get()  # nothing that can fail, or Hydra would print about it
        words = OmegaConf.to_container(settings.overrides.task, resolve=False)  # as typed, with their ${...}
        composed.append(Composed(node, {}, dict(settings.runtime.choices), tuple(words), sweeps=False))

    with signals.held():
        tempfile.gettempdir()  # tries a folder by a file in it, which Ctrl-C would leave there
    with tempfile.TemporaryDirectory() as folder, _help_texts_unchecked():
        os.environ[SWEEP_FOLDER] = folder
        flags = read_command(words)
        check_plugins()
        plugins = Plugins.instance().class_name_to_class  # Hydra imports its own once more
        plugins[_PLAIN["launcher._target_"]].launch = add_cells
        plugins[_PLAIN["sweeper._target_"]].split_arguments = staticmethod(_split)
        try:
            add()
        except SystemExit as end:  # after --help
            if end.code:
                raise
        except Refused as refusal:
            raise _mistake(str(refusal)) from None
        except (ValueError, OverflowError) as error:
            if (line := _explained(error)) is None:
                raise
            raise _mistake(line) from error
    return flags, composed


# Cells. Composing one takes Hydra a tenth of a second. It sets values last of all, and most cells differ in them alone:
# so it composes once for equal choices, and sets and checks each value once.


def _cells(launcher: Launcher, cells: Sequence[Sequence[str]]) -> Iterator[Composed]:
    """The cells with these words, composed as Hydra's own launcher does."""
    setup_globals()
    loader = launcher.hydra_context.config_loader
    # Folders that files name may hold a group of any name.
    known_groups = not OmegaConf.select(launcher.config, "hydra.searchpath")
    made: dict[tuple[str, ...], _Choice] = {}
    for words in map(tuple, cells):
        keys = {word: word.partition("=")[0] for word in words}
        values = [
            word
            for word, key in keys.items()
            if known_groups and re.fullmatch(r"[a-z][\w.]*", key) and not loader.repository.group_exists(key)
        ]
        rest = tuple(word for word in words if word not in values)
        if rest not in made:
            made[rest] = _Choice(launcher, rest)
        changed = made[rest].values_of(values)
        choice, changed = (_Choice(launcher, words), {}) if changed is None else (made[rest], changed)
        yield Composed(choice.node, changed, choice.groups, words, sweeps=True)


class _Choice:
    """A configuration that Hydra composed, and values that it set in a copy of it."""

    def __init__(self, launcher: Launcher, words: Sequence[str]) -> None:
        self.node = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(words))
        self.groups = dict(self.node.hydra.runtime.choices)
        with read_write(self.node), open_dict(self.node):
            del self.node["hydra"]
        self.copy = copy.deepcopy(self.node)
        values = str(OmegaConf.to_container(self.node, resolve=False))
        self.alone = (
            "${" not in values and "???" not in values
        )  # no value depends on another, or waits for one
        self.known: dict[str, tuple[str, Any] | None] = {}

    def values_of(self, words: Sequence[str]) -> dict[str, Any] | None:
        """The values that words set, by key; None where Hydra has to compose them with the rest, or to refuse them."""
        for word in words:
            if word not in self.known:
                self.known[word] = self._set(word) if self.alone and "$" not in word else None
        values = [self.known[word] for word in words]
        return None if None in values else dict(values)  # type: ignore[arg-type]

    def _set(self, word: str) -> tuple[str, Any] | None:
        [override] = OverridesParser.create().parse_overrides([word])
        key = str(override.key_or_group)
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], self.copy)
            value = OmegaConf.select(self.copy, key, throw_on_missing=True)
        except (HydraException, OmegaConfBaseException):
            value = self.copy
        if OmegaConf.is_dict(value):  # a node, of which any part may have changed
            self.copy = copy.deepcopy(self.node)
            return None
        return key, OmegaConf.to_container(value) if OmegaConf.is_list(value) else value


MOST_CELLS = 10_000
"""Cells of a sweep, and trials of a comparison; composing as many takes minutes, and millions fill the memory."""
_split_arguments = BasicSweeper.split_arguments


def _split(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
    """Hydra's cells, counted before they are made. Raises Refused for too many."""
    swept = [one for one in overrides if one.is_sweep_override() and one.is_discrete_sweep()]
    counts = {one.input_line: len(values_of(one)) for one in swept}
    if math.prod(counts.values()) > MOST_CELLS:
        words = ", ".join(str(line) for line, count in counts.items() if count > 1)
        raise Refused(f"a sweep over {words} has more than {MOST_CELLS:,} cells; sweep over fewer values")
    return _split_arguments(overrides, max_batch_size)


def values_of(swept: Override) -> list[Any]:
    """The values of a sweep's word, in order; of more than MOST_CELLS only one more than those."""
    elements = swept.value()
    is_range = isinstance(elements, RangeSweep)
    values = dataclasses.replace(elements, shuffle=False).range() if is_range else swept.sweep_iterator()
    return list(itertools.islice(values, MOST_CELLS + 1))


def _explained(error: ValueError | OverflowError) -> str | None:
    """Explain a plain error of Hydra's, about its flags or choices, with the remedy; None for anything else."""
    if isinstance(error, OverflowError):
        key = re.search(r"full_key: (\S+)", str(error))
        return f"{key[1] if key else 'a key'}: the number is too large; give one below 1e308"
    if str(error).startswith(("Only one of --", "Expecting one subcommand", "No completion plugin")):
        return str(error)
    if str(error).startswith("Exceeds the limit"):  # of digits that Python reads
        return "a number on the command line has more than 4,300 digits; no key takes one"
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
        return f"unknown key '{key}'; {node} has {', '.join(keys_of(node, keys))}"
    return f"unknown key '{key}'; `python run.py --cfg job` shows all keys"


def unknown_choice(group: str, name: str, options: Iterable[str]) -> str:
    """The line about a file that a group of conf/ does not have: model=NAME, +experiment=NAME."""
    # As zoo.errors.unknown, without `zoo`, which imports torch.
    meant = difflib.get_close_matches(name, sorted(options), n=1, cutoff=0.5)
    hint = f"; did you mean '{meant[0]}'?" if meant else "."
    choose = f"Choose one with {'+' * (group == 'experiment')}{group}=NAME"
    return f"unknown {group} '{name}'{hint} Known: {', '.join(sorted(options))}. {choose}"


_RECIPE = ("data", "optim", "trainer")
"""The nodes that are most often meant."""


def _similar_keys(key: str, known: list[str]) -> list[str]:
    """Up to three keys that may have been meant by an unknown one; none where nothing is alike.

    Those with the same last word deeper inside the same node (model.residual.iters: model.residual.mhc.iters); else the
    one of the node that is written most alike (probe.window: probe.windows); else those with the same last word
    anywhere (lr: optim.lr); else those whose last word has it as a part (trainer.batch: data.batch_size); else the
    key that is written most alike, if the node is unknown. A node in which one chooses is meant by its name (residual:
    model.residual.name).
    """
    node, _, word = key.rpartition(".")
    same = [k for k in known if k.rpartition(".")[2] == word]
    parts = [k for k in known if word in k.rpartition(".")[2].split("_")]
    inside = [k for k in same if node and k.startswith(f"{node}.")]
    alike = (
        [f"{node}.{k}" for k in difflib.get_close_matches(word, keys_of(node, known), n=1)] if node else []
    )
    similar = difflib.get_close_matches(key, inside, n=3, cutoff=0.0) or alike
    similar = similar or difflib.get_close_matches(key, same, n=3, cutoff=0.0)
    similar = similar or sorted(parts, key=lambda k: (k.count("."), k.partition(".")[0] not in _RECIPE))[:3]
    if not similar and node not in known:
        similar = difflib.get_close_matches(key, known, n=1)
    return [f"{k}.name" if f"{k}.name" in known else k for k in similar]


def keys_of(node: str, known: list[str]) -> list[str]:
    """The last words of the keys right inside a node."""
    return [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == node]

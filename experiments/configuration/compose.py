"""Configurations, composed with Hydra from a command and conf/; presets and their labels.

A preset also names a model in legends: its label tells how it differs from the preset.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from experiments.configuration import hydra_settings, schema
from experiments.configuration.explain import OPTIONS, unused_options
from experiments.configuration.hydra_settings import Composed
from experiments.configuration.schema import Config
from experiments.data import TASKS, resolve_task
from experiments.system.machine import one_line
from experiments.system.paths import BLOCKS, CONF, IN_WHEEL, ROOT
from zoo.config import Architecture, ModelConfig, architecture_of, check_names, from_dict, split
from zoo.errors import UserError
from zoo.io import read_card
from zoo.options import check_limits

_PRESETS = CONF / "model"


def compose(
    describe_jobs: Callable[[], str] = str, notify: Callable[[str], None] | None = None
) -> list[Config]:
    """The configurations that the command line asks for: one, or all cells of a sweep. Runs nothing.

    An empty list where Hydra answered the command by itself (--help, --cfg, --info). describe_jobs: returns the lines
    of --help about jobs; called only for --help; notify: called with a line for each option that no cell uses.

    Raises UserError for a sweep of no cells, for what Hydra would take and ignore (`hydra_settings`) and for mistakes
    that it states by a plain ValueError, and Hydra's own errors for others.
    """
    schema.register()
    OmegaConf.register_new_resolver("describe_jobs", describe_jobs, replace=True)  # in conf/config.yaml
    OmegaConf.register_new_resolver("describe_files", describe_files, replace=True)
    OmegaConf.register_new_resolver(
        "architectures", lambda: ",".join(presets_to_compare()), replace=True
    )  # in its sweeps
    OmegaConf.register_new_resolver("for_size", for_size, replace=True)
    OmegaConf.register_new_resolver("headlines", lambda: ",".join(headlines()), replace=True)
    flags, composed = hydra_settings.collect(sys.argv[1:])
    if not (composed or hydra_settings.shows(flags)):
        raise hydra_settings.no_cells(flags.overrides)
    if flags.run and composed and composed[0].sweeps:
        raise UserError("--run is for one run, and this is a sweep; leave --run out, or give hydra.mode=RUN")
    for each in composed:
        check_recipe(each.choices.get("recipe"), each.choices.get("data"))
        _check_size(each.choices.get("model"), each.words)
    configs = _to_configs(composed)
    words = dict.fromkeys(word for each in composed for word in each.words)
    given = frozenset(word.partition("=")[0].lstrip("+~") for word in words)
    for config in configs[:1]:
        _refuse_other_values(config, [*flags.overrides, *words])  # as typed, and as a sweep writes them again
    if any(config.blocks for config in configs) and not os.environ.get(BLOCKS):
        raise UserError(
            "blocks= works only on the command line, as it is read before any file: give blocks=[FOLDER] there"
        )
    for config in configs:
        config.given = given
    if notify and any(key.startswith(OPTIONS) for key in given):
        for line in unused_options(words, configs):
            notify(line)
    return configs


def _refuse_other_values(config: Config, words: Iterable[str]) -> None:
    """Refuse words of which Hydra would take something else than what is typed. Raises UserError.

    A number but 0 and 1 for a key that is true or false; a text that reads as a number of another spelling.
    """
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        if not re.fullmatch(r"[-+]?[\d.]\S*|(?i:true|false)", text):
            continue
        try:
            value = operator.attrgetter(key)(config)
        except AttributeError:  # a group
            continue
        override = OverridesParser.create().parse_override(word)
        if override.is_sweep_override():  # its values are words of cells
            continue
        read = override.value()
        if isinstance(value, bool) and not isinstance(read, bool) and text not in ("0", "1"):
            raise UserError(f"{key}={text} must be true or false")
        if isinstance(value, str) and isinstance(read, int | float) and str(read) != text:
            raise UserError(
                f"{key}={text} would be read as {read}; quote it twice on a command line: '{key}=\"{text}\"'"
            )


def describe_files() -> str:
    """The lines of --help about files that say more; of a wheel, which brings no pages, by their whole paths."""
    files = {
        "experiments/configuration/schema.py": "what every key means (for blocks: zoo/)",
        ".docs/reference/keys.html": "the same as a page, with the blocks' keys (make docs writes it)",
        "conf/": "the files behind model=, size=, data= and +experiment=",
    }
    if IN_WHEEL:
        files = {str(ROOT / name): about for name, about in files.items() if not name.startswith(".")}
    return "\n".join(f"  {name:<52} {about}" for name, about in files.items())


def check_recipe(recipe: str | None, data: str | None) -> None:
    """Refuse a recipe that has nothing for the data. Raises UserError."""
    known = sorted(path.stem for path in (CONF / "recipe" / str(recipe)).glob("*.yaml"))
    if recipe is not None and data not in known:
        raise UserError(
            f"recipe={recipe} has no settings for data={data}, only for {', '.join(known)}; leave it out"
        )


def _check_size(model: str | None, words: Sequence[str]) -> None:
    """Refuse a size beside a published model, whose own would win. Raises UserError."""
    if str(model).startswith("published/") and any(word.startswith("size=") for word in words):
        raise UserError(
            f"model={model} sets its own size; leave size= out, and set data.seq_len and data.batch_size instead"
        )


def headlines() -> list[str]:
    """The headlines of papers that there are, conf/headline/NAME.yaml: `headline: ${headlines:}`."""
    return sorted(path.stem for path in (CONF / "headline").glob("*.yaml"))


def for_size(size: str, here: str, otherwise: str, _root_: DictConfig) -> str:
    """In sweeps of an experiment: the one value where the command says size=SIZE, else the other."""
    return here if _root_.hydra.runtime.choices["size"] == size else otherwise


def _to_configs(composed: Sequence[Composed]) -> list[Config]:
    """The typed configurations, with the vocabulary and the length of their tasks; equal nodes of cells are one object.

    Raises ConfigKeyError for keys added with a plus, and UserError for values beyond their limits and for keys that a
    task has no use for.
    """
    typed: dict[int, Config] = {}
    made: dict[tuple[int, str], Any] = {}
    configs = []
    for each in composed:
        base = typed.get(id(each.node)) or typed.setdefault(id(each.node), _to_object(each.node))
        config = _with_values(base, each.changed, made)
        if config.data.name in TASKS:
            config.data = resolve_task(config.data)
        check_limits(config)
        check_names(config.model)
        for key in ("results", "run", "runs"):  # a shell leaves ~ in quotes alone
            if place := getattr(config, key):
                setattr(config, key, os.path.expanduser(place))
        configs.append(config)
    return configs


def _to_object(node: DictConfig) -> Config:
    config: Config = OmegaConf.to_object(node)  # type: ignore[assignment]
    if not isinstance(config, Config):
        raise UserError("the file of --config-name has no schema; begin it with `defaults: [config, _self_]`")
    if _has_more_than_fields(config):  # merging, ten times as slow, names the key
        OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.to_container(node, resolve=True))
    return config


def _with_values(options: Any, changed: Mapping[str, Any], made: dict[tuple[int, str], Any]) -> Any:
    """A copy of a node with other values, by dotted key; made: the nodes inside that were changed before."""
    values: dict[str, Any] = {key: value for key, value in changed.items() if "." not in key}
    for name in dict.fromkeys(key.partition(".")[0] for key in changed if "." in key):
        inner = {key.partition(".")[2]: changed[key] for key in changed if key.startswith(f"{name}.")}
        node = options[name] if isinstance(options, dict) else getattr(options, name)
        place = id(node), repr(sorted(inner.items()))
        if place not in made:
            made[place] = _with_values(node, inner, made)
        values[name] = made[place]
    return {**options, **values} if isinstance(options, dict) else dataclasses.replace(options, **values)


def _has_more_than_fields(options: object) -> bool:
    """Return whether a dataclass, or one among its values, has attributes that it does not declare."""
    if not dataclasses.is_dataclass(options):
        return False
    values, declared = vars(options), options.__dataclass_fields__
    return not values.keys() <= declared.keys() or any(map(_has_more_than_fields, values.values()))


SHARED = ("d_model", "n_heads", "depth", "tie_embeddings", "norm_eps", "backend")
"""Keys of a model that all presets of a comparison have from its command."""


def architectures(like: ModelConfig) -> dict[str, ModelConfig]:
    """Preset -> its configuration, with the SHARED keys of `like`; the transformer first."""
    shared = {key: getattr(like, key) for key in SHARED}
    return {name: from_dict(ModelConfig, {**overlay(name), **shared}) for name in _names()}


def presets_to_compare() -> list[str]:
    """The presets to compare: all but those whose file begins "# Variant of ...".

    In conf/experiment/: `model: ${architectures:}`.
    """
    return [
        name for name in _names() if not _file(name).read_text(encoding="utf-8").startswith("# Variant of")
    ]


def _names() -> list[str]:
    names = (path.stem for path in _PRESETS.glob("*.yaml"))
    return sorted(names, key=lambda name: (name != "transformer", name))


def _file(name: str) -> Path:
    return _PRESETS / f"{name}.yaml"


@functools.lru_cache
def overlay(name: str) -> dict[str, Any]:
    """The keys of the model that conf/model/NAME.yaml sets; none if there is no such preset.

    NAME: that of a preset, or published/NAME, whose file sets the vocabulary too.
    """
    path = _file(name)
    values = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    return values.get("model", values)  # type: ignore[return-value]


def differences_from_preset(config: ModelConfig, layers: Architecture) -> list[str]:
    """Return what a model has and its preset has not, as words: residual scheme, channel mixer, options of blocks.

    Options of the channel mixer are left out: its width is set for every model by `match=params`.
    """
    defaults, preset, found = _defaults(), overlay(config.preset or ""), []

    def compare_options(part: str, block: str) -> None:
        usual = {**defaults[part][block], **preset.get(part, {}).get(block, {})}
        chosen = dataclasses.asdict(getattr(getattr(config, part), block))
        found.extend(_describe_option(key, value) for key, value in chosen.items() if value != usual[key])

    for part in ("residual", "channel"):
        chosen = getattr(config, part).name
        found += [chosen] if chosen != preset.get(part, defaults[part])["name"] else []
    compare_options("residual", config.residual.name)
    for name in sorted(mixer.name for mixer in layers.kinds if not mixer.is_variant):
        compare_options("mixers", name)
    usual = preset.get("variants", {})
    return found + [
        _describe_variant(name, config.variants[name])
        for name in sorted(mixer.name for mixer in layers.kinds if mixer.is_variant)
        if config.variants[name] != usual.get(name)
    ]


def _describe_variant(name: str, values: Mapping[str, Any]) -> str:
    """W=attention(window=512): a variant as a legend says it."""
    options = (_describe_option(key, value) for key, value in values.items() if key != "mixer")
    return f"{name}={values['mixer']}({', '.join(options)})"


@functools.cache
def _defaults() -> dict[str, Any]:
    return dataclasses.asdict(ModelConfig())


def _describe_option(option: str, value: Any) -> str:
    """An option as a legend says it: "output_gate", "no output_gate", "aux_weight=0"."""
    if isinstance(value, bool):
        return option if value else f"no {option}"
    if value is None:
        return f"{option}=null"
    return f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"


def label(config: Config, layers: Architecture) -> str:
    """The name of a model in a legend: "kda", "kda K*4", "KKKF hc", "transformer output_gate mqar".

    First comes the preset; of a pattern of one's own the pattern, after the mixer where there is one mixer alone or the
    pattern has a name. Then residual scheme, channel mixer and options that the preset does not have, and the synthetic
    task that it is trained on.
    """
    return " ".join([*_name(config.model, layers), *_after_the_name(config, layers)])


def _after_the_name(config: Config, layers: Architecture) -> list[str]:
    """Return what a model has and its preset has not, its task, and whether it began with another's weights."""
    task = [config.data.name] if config.data.name in TASKS else []
    begun = (
        [] if config.start.weights is None else ["continued" if config.start.into is None else "converted"]
    )
    return differences_from_preset(config.model, layers) + task + begun


def short_labels(models: Sequence[tuple[Config, Architecture]]) -> list[str]:
    """The label of every model, given as (configuration, layers), without differences that all of them share.

    Where all labels are equal, they are returned whole.
    """
    parts = [(_name(config.model, layers), _after_the_name(config, layers)) for config, layers in models]
    whole = [" ".join([*name, *own]) for name, own in parts]
    if len(set(whole)) < 2:
        return whole
    shared = set.intersection(*(set(own) for _, own in parts))
    return [" ".join([*name, *(x for x in own if x not in shared)]) for name, own in parts]


def shorten_pattern(letters: str) -> str:
    """FFFF -> F*4; more than eight letters that repeat, SSFSSFSSFSSF -> (SSF)*4; anything else as it is."""
    words = split(letters)
    length = len(words)
    unit = next(n for n in range(1, length + 1) if words == words[:n] * (length // n))
    if unit == 1 < length:
        return f"{words[0]}*{length}"
    return f"({''.join(words[:unit])})*{length // unit}" if unit < length > 8 else letters


def _name(config: ModelConfig, layers: Architecture) -> list[str]:
    """The preset or dominant mixer, and the layout or pattern where it is not the usual one."""
    preset, letters = config.preset, layers.letters
    if set(letters) == {"F"} and preset in (None, "transformer"):
        return ["transformer"]
    pattern = layers.layout or shorten_pattern(letters)
    if preset in (None, "transformer"):  # a pattern of one's own on top of the default preset
        mixed = len(layers.kinds) > 1 and layers.layout is None  # which no block's name describes
        return [pattern] if mixed else [layers.named_after.name, pattern]
    as_preset = {
        "pattern": overlay(preset).get("pattern", letters),
        "variants": {**overlay(preset).get("variants", {}), **config.variants},
    }
    usual = architecture_of(dataclasses.replace(config, **as_preset)).letters
    return [preset] if letters == usual else [preset, pattern]


# Keys of a model beside run=, whose model is another one.

BACKEND = "model.backend"
"""The one key of a model that a command may give beside run=: it changes nothing of what is computed."""
_WHOLE = ("pattern", "variants", "residual.name", "channel.name")


def given_backend(config: Config) -> str | None:
    """The backend that the command gives; None where it leaves a run its own."""
    return config.model.backend if BACKEND in config.given else None


def tell_other_model(config: Config) -> None:
    """Print a notice where the command gives keys of `model` and the model of run= has other values: it keeps its own.

    No mistake: the words that trained a run may stand before job=evaluate, too. run= was loaded before, so that there
    is a card to read.
    """
    given = [key.removeprefix("model.") for key in config.given - {BACKEND} if key.startswith("model.")]
    compared = [*given, *(_WHOLE if "model" in config.given else ())]
    if not compared:
        return
    model = from_dict(ModelConfig, read_card(config.run)["model"], recorded=True)
    differ = {key: _value(model, key) for key in compared}
    differ = {key: own for key, own in differ.items() if own != _value(config.model, key)}
    if differ:
        own = one_line(", ".join(f"model.{key}={value}" for key, value in sorted(differ.items())))
        print(
            f"notice: {config.run} keeps the model that it was trained with, {own}; job={config.job} ignores other "
            "values",
            file=sys.stderr,
            flush=True,
        )


def _value(model: ModelConfig, key: str) -> Any:
    """The value at a dotted key; None where a model has no such node."""
    node: Any = model
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else getattr(node, part, None)
    return node

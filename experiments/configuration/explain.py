"""Mistakes in a command, explained: Hydra's errors in one line, and options that none of its models uses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.configuration import hydra_settings
from experiments.configuration.schema import Config
from experiments.data import TASKS
from zoo import registry
from zoo.config import QUOTING, architecture_of
from zoo.errors import UserError

# Errors of Hydra and OmegaConf in one line: the mistake, what was probably meant, the remedy.

_UNREAD = "Error parsing override"
_TYPES = "bool, int, float, str, a list or dict of them, each perhaps with | None"


def explain(error: BaseException) -> str:
    """A configuration error in one line, with a suggestion where a name is close to a known one."""
    text = _flat(str(error))
    word = getattr(
        error, "override", None
    )  # that Hydra's grammar cannot read; its text does not always name it
    if word and not text.startswith(_UNREAD):
        text = f"{_UNREAD} '{word}'\n{text}"
    cause = _flat(str(error.__cause__)) if error.__cause__ else ""
    if block := _unusable_options():
        return block
    for rule in (
        *(_unknown_choice, _unknown_key, _node_as_value, _reference, _bad_value, _no_null, _no_list),
        *(_sweep_of_one, _no_values, _bad_syntax),
    ):
        line = rule(text, cause)
        if line:
            return line
    return f"{text} {cause}".strip()


def _flat(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text).strip()


def _unusable_options() -> str | None:
    """A block or task whose options have a type that no configuration can hold; nothing can be composed with it."""
    blocks = [
        (b.kind, b.name, b.cls, b.config) for kind in registry.KINDS for b in registry.blocks(kind).values()
    ]
    for kind, name, cls, config in [*blocks, *(("task", n, t, t.config) for n, t in TASKS.items())]:
        try:
            OmegaConf.structured(config)
        except OmegaConfBaseException as error:
            file = cls.__module__.replace(".", "/") + ".py"
            return f"{file}: options of {kind} '{name}': {str(error).splitlines()[0]}; use {_TYPES}"
    return None


def _unknown_choice(text: str, cause: str) -> str | None:
    """`model=transfomer`: a YAML file that a group does not have."""
    match = re.search(r"Could not find '([\w/.-]+)/([^'/]*)'", text)
    if not match:
        return None
    group, name = match.groups()
    if group.startswith("hydra/"):
        return f"{group}={name} is not here: {hydra_settings.way(group)}"
    options = re.findall(r"^\s+(\S+)$", text.partition("Available options")[2], re.MULTILINE)
    return hydra_settings.unknown_choice(group, name, options)


def _unknown_key(text: str, cause: str) -> str | None:
    """`trainer.max_stepz=3`: a key the schema does not have."""
    match = re.search(r"Could not (?:override|append to config|append) '([^'@]+)'", text)
    named = re.search(r"Key '([^']+)' (?:not in|is not in)|Error setting .*? '([^']+)'", cause or text)
    full = re.search(r"full_key: (\S+)", f"{cause} {text}")
    if match is None and (named is None or full is None):
        return None
    key = match.group(1).lstrip("+~") if match else full.group(1)
    key = key.partition("=")[0]
    if key == "experiment":
        return "choose an experiment with a plus: +experiment=NAME"
    return hydra_settings.unknown_key(key, known_keys())


def _node_as_value(text: str, cause: str) -> str | None:
    """`model.residual=mhc`: a value where a node with keys belongs, or where a list holds something else."""
    both = f"{cause} {text}"
    match = re.search(r"Invalid type assigned: (\w+) is not a subclass of (\w+)\.\s+value: (.*)", both)
    full = re.search(r"full_key: (\S+)", both)
    if match is None or full is None:
        return None
    key, keys, value = full.group(1), known_keys(), match.group(3)
    if f"{key}.name" in keys:
        return f"{key} has keys of its own; did you mean '{key}.name={value}'?"
    if key in keys and (inside := hydra_settings.keys_of(key, keys)):
        return f"{key}={value} is no value: {key} has the keys {', '.join(inside)}; give one, {key}.{inside[0]}=..."
    return f"{key}={value} must be of type {match.group(2)}, not {match.group(1)}"


def _reference(text: str, cause: str) -> str | None:
    """`results=${foo}`, `seed=???`: a reference to a key or variable that there is not; a value left open."""
    both = f"{cause} {text}"
    full = re.search(r"full_key: (\S+)", both)
    key = f"{full.group(1)}: " if full else ""
    remedy = "a $ that is part of a value is written \\$"
    if match := re.search(r"Interpolation key '([^']+)' not found", both):
        return (
            f"{key}there is no key '{match.group(1)}', whose value ${{{match.group(1)}}} stands for; {remedy}"
        )
    if match := re.search(r"Environment variable '([^']+)' not found", both):
        return f"{key}the environment variable {match.group(1)} is not set; set it, or give a value"
    if match := re.search(r"Unsupported interpolation type (\S+)", both):
        return f"{key}${{{match.group(1)}:...}} is no function; ${{KEY}} stands for another key's value, and {remedy}"
    if "Recursive interpolation" in both:
        return f"{key}the value refers to itself; give a value"
    if match := re.search(r"missing mandatory value: (\S+)", both):
        return f"{match.group(1)}=??? leaves the value open; give one, or leave the key out"
    return None


def _bad_value(text: str, cause: str) -> str | None:
    """`trainer.max_steps=abc`: a value of the wrong type."""
    for source in (cause, text):
        match = re.search(r"(Value '.*?'.*?)(?:\n|\.? ?full_key:|$)", source)
        key = re.search(r"full_key: (\S+)", source)
        if match and key:
            return f"{key.group(1)}: {match.group(1).strip()}"
    return None


def _no_list(text: str, cause: str) -> str | None:
    """`cost.lengths=5`: one value where a list belongs."""
    match = re.search(r"(\w+) is not a ListConfig, list or tuple", f"{cause} {text}")
    key = re.search(r"full_key: (\S+)", f"{cause} {text}")
    return f"{key.group(1)} must be a list; write {key.group(1)}=[A,B]" if match and key else None


def _no_null(text: str, cause: str) -> str | None:
    """`seed=null`: nothing, where a value belongs."""
    match = re.search(r"field '[^']+' is not Optional", f"{cause} {text}")
    key = re.search(r"full_key: (\S+)", f"{cause} {text}")
    return f"{key.group(1)} cannot be null; leave it out for its default" if match and key else None


def _sweep_of_one(text: str, cause: str) -> str | None:
    """`seed=1,2` without --multirun."""
    match = re.search(r"Ambiguous value for argument '([^=']+)=(.*)'", text)
    if match is None:
        return None
    key, values = match.groups()
    return f"{key}={values} is a sweep; begin the command with --multirun, or give one value (a list: {key}=[{values}])"


def _no_values(text: str, cause: str) -> str | None:
    """`optim.lr=interval(1e-4,1e-2)`: a range of numbers, from which another sweeper would draw."""
    if "does not support sweep type" not in text:
        return None
    return f"interval(...) names no values; {hydra_settings.way('hydra/sweeper')}"


def _bad_syntax(text: str, cause: str) -> str | None:
    """A command-line word that Hydra's grammar cannot read, most often an unquoted pattern with parentheses."""
    if not re.search(
        r"mismatched input|extraneous input|no viable|NoViableAlt|token recognition|missing", text
    ):
        return None
    first = text.splitlines()[0].removeprefix("LexerNoViableAltException: ")
    word = re.sub(rf"^{_UNREAD} '(.*)'$", r"\1", first)
    key, equals, _ = word.partition("=")
    if not equals or key != key.strip():
        job = f" (a job: job={word})" if word.isidentifier() else ""
        return f"cannot read the command line: {word!r}; give key=value, without spaces around ={job}"
    example = QUOTING if key == "model.pattern" else f"""quote it twice on a command line: '{key}="..."'"""
    return (
        f"cannot read the command line: {word}. Quotes, brackets, braces, parentheses, commas and a first ~ need "
        f"quotes; {example}"
    )


def known_keys() -> list[str]:
    """All dotted keys of the schema, and the group names."""
    from experiments.configuration.schema import Config

    return ["model", "size", "data", "recipe", *_keys(Config())]


def _keys(node: object, prefix: str = "") -> list[str]:
    out = []
    for f in dataclasses.fields(node):  # type: ignore[arg-type]
        value, key = getattr(node, f.name), f"{prefix}{f.name}"
        out.append(key)
        if dataclasses.is_dataclass(value):
            out += _keys(value, f"{key}.")
    return out


# Options of blocks and tasks that a command sets and none of its models uses.

_NODES = {"mixers": "mixer", "residual": "residual", "channel": "channel"}
_TASK, _VARIANT = "task", "variant"
OPTIONS = (*(f"model.{node}." for node in _NODES), "model.variants.", "data.tasks.")
"""How keys of blocks' and tasks' options begin."""


def unused_options(words: Iterable[str], configs: Sequence[Config]) -> list[str]:
    """A line for each block or task whose options `words` set and no run of `configs` has, with what would use them.

    words: overrides of a command line, "model.residual.mhc.iters=5"; what presets set is not in them. No mistake: the
    same words may stand behind several commands. No lines where a pattern cannot be read, which a job complains of.
    """
    keys: dict[tuple[str, str], dict[str, None]] = {}
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        if block := _block_set_by(key):
            keys.setdefault(block, {})[key] = None
    try:
        used = {block for config in configs for block in _blocks_of(config)}
    except UserError:
        return []
    return [
        f"no {'run' if block[0] == _TASK else 'model'} of this command uses {', '.join(unused)}; {_how_to_use(*block)}"
        for block, unused in keys.items()
        if block not in used
    ]


def _blocks_of(config: Config) -> set[tuple[str, str]]:
    """(kind, name) of every block that a model is made of, and of its task."""
    layers = architecture_of(config.model)
    return {
        *((block.kind, block.name) for block in layers.blocks),
        *((_VARIANT, mixer.name) for mixer in layers.kinds if mixer.is_variant),
        (_TASK, config.data.name),
        *((_TASK, name) for name in TASKS if config.job == "evaluate"),  # the run decides which counts
    }


def _block_set_by(key: str) -> tuple[str, str] | None:
    """model.residual.mhc.iters -> ("residual", "mhc"); None for a key that is no block's option."""
    if key.startswith("data.tasks."):
        task = key.split(".")[2]
        return (_TASK, task) if task in TASKS else None
    if key.startswith("model.variants."):
        return _VARIANT, key.split(".")[2]
    node, _, rest = key.removeprefix("model.").partition(".")
    name = rest.partition(".")[0]
    known = key.startswith("model.") and node in _NODES and name in registry.blocks(_NODES[node])
    return (_NODES[node], name) if known else None


def _how_to_use(kind: str, name: str) -> str:
    if kind in ("mixer", _VARIANT):
        word = registry.word(name) if kind == _VARIANT else registry.get(kind, name).word
        return f"a model with a layer {word} would"
    return f"data={name} would" if kind == _TASK else f"model.{kind}.name={name} would"

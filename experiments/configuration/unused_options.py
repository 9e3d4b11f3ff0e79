"""Options of blocks and tasks that a command sets and none of its models uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.configuration.schema import Config
from experiments.data import TASKS
from zoo import registry
from zoo.errors import UserError
from zoo.model import letters_of

_NODES = {"mixers": "mixer", "residual": "residual", "channel": "channel"}
_TASK = "task"
OPTIONS = (*(f"model.{node}." for node in _NODES), "data.tasks.")
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
    mixers, model = registry.mixer_by_letter(), config.model
    return {
        *(("mixer", mixers[letter].name) for letter in set(letters_of(model))),
        ("residual", model.residual.name),
        ("channel", model.channel.name),
        (_TASK, config.data.name),
        *((_TASK, name) for name in TASKS if config.job == "evaluate"),  # the run decides which counts
    }


def _block_set_by(key: str) -> tuple[str, str] | None:
    """model.residual.mhc.iters -> ("residual", "mhc"); None for a key that is no block's option."""
    if key.startswith("data.tasks."):
        task = key.split(".")[2]
        return (_TASK, task) if task in TASKS else None
    node, _, rest = key.removeprefix("model.").partition(".")
    name = rest.partition(".")[0]
    known = key.startswith("model.") and node in _NODES and name in registry.blocks(_NODES[node])
    return (_NODES[node], name) if known else None


def _how_to_use(kind: str, name: str) -> str:
    if kind == "mixer":
        return f"a model with a layer {registry.get(kind, name).letter} would"
    return f"data={name} would" if kind == _TASK else f"model.{kind}.name={name} would"

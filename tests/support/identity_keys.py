"""The keys of a run's identity, option by option, as they were frozen in identity_keys.json.

`python tests/support/identity_keys.py` writes the file anew; the only good reason is a new block whose runs are
worth keeping, or an option that was added with its mark.
"""

import json
from pathlib import Path
from typing import Any

from experiments.configuration.schema import Config, EvaluateConfig, OptimConfig, TrainerConfig
from experiments.planning.identity import identify
from zoo import ModelConfig, registry
from zoo.config import architecture_of
from zoo.options import before_they_existed

FROZEN = Path(__file__).with_suffix(".json")
Keys = dict[str, dict[str, Any]]  # node -> {"always": [option, ...], "added": {option: before}}


def keys() -> Keys:
    """The keys that identities have now: `always`, and those added later with the value at which they are left out."""
    identity = _identity(Config())
    found = {"run": _node(identity), "data": _node(identity["data"])}
    found["evaluate"] = _node(identity["evaluate"], EvaluateConfig)
    found["recipe"] = _node(identity["recipe"], OptimConfig, TrainerConfig)
    found["model"] = _node(identity["model"], ModelConfig)
    for kind in registry.KINDS:
        for name, block in registry.blocks(kind).items():
            found[f"{kind}.{name}"] = _node(_options(block), block.config)
    return found


def _identity(config: Config) -> dict[str, Any]:
    return identify(config, architecture_of(config.model), "")


def _options(block: registry.Block) -> dict[str, Any]:
    """A block's options in the identity of a run that has the block, where what was added later does as before."""
    options = block.config(**before_they_existed(block.config))
    config = Config()
    if block.kind == "mixer":
        setattr(config.model.mixers, block.name, options)
        config.model.pattern = block.word
        return _identity(config)["model"]["mixers"][block.name]
    choice = getattr(config.model, block.kind)
    choice.name = block.name
    setattr(choice, block.name, options)
    return _identity(config)["model"][block.kind][block.name]


def _node(options: dict[str, Any], *classes: type) -> dict[str, Any]:
    return {
        "always": sorted(options),
        "added": {key: value for cls in classes for key, value in before_they_existed(cls).items()},
    }


def broken(frozen: Keys, now: Keys) -> list[str]:
    """One sentence for everything that gives finished runs another name; new blocks and marked options do not."""
    found = []
    for node in sorted(frozen.keys() | now.keys()):
        if node not in now:
            found.append(f"{node} is gone: its runs can be found no more. Put it back.")
        elif node in frozen:
            found += _changes(node, frozen[node], now[node])
        elif not node.startswith(registry.KINDS):
            found.append(f"{node} is a new part of every identity: every run would train again.")
    return found


def _changes(node: str, frozen: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    for key in now["always"]:
        if key not in frozen["always"]:
            found.append(
                f"{node}.{key} is new in the identity: every finished run with {node} would get another name and "
                f"train again. Declare it as `{key}: ... = added(DEFAULT, before=VALUE)` (zoo/options.py), where "
                "VALUE behaves as before the option existed."
            )
    for key in frozen["always"]:
        if key not in now["always"]:
            what = "is marked as added later, but is as old as its runs" if key in now["added"] else "is gone"
            found.append(f"{node}.{key} {what}: finished runs with {node} would get another name. Undo that.")
    for key, before in frozen["added"].items():
        if key not in now["added"] and key not in now["always"]:
            found.append(
                f"{node}.{key} is gone: finished runs that set it would be found under another name."
            )
        elif key in now["added"] and now["added"][key] != before:
            found.append(
                f"{node}.{key} has before={now['added'][key]!r} where it was {before!r}: the runs made since would "
                "get another name. What the program did before the option existed does not change."
            )
    return found


if __name__ == "__main__":
    nodes = (
        f"{json.dumps(node)}: {json.dumps(found, sort_keys=True)}" for node, found in sorted(keys().items())
    )
    FROZEN.write_text("{\n" + ",\n".join(nodes) + "\n}\n")

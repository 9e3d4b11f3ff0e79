"""The presets of conf/model/, and labels of models by how they differ from them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.configuration.schema import Config
from experiments.data import TASKS
from experiments.system.paths import CONF
from zoo import registry
from zoo.config import ModelConfig, from_dict, layout_name

_PRESETS = CONF / "model"


def architectures(like: ModelConfig) -> dict[str, ModelConfig]:
    """Preset -> its configuration, with the width, heads, depth and backend of `like`; the transformer first."""
    shared = {key: getattr(like, key) for key in ("d_model", "n_heads", "depth", "tie_embeddings", "backend")}
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
    """The keys that conf/model/NAME.yaml sets; none if there is no such preset."""
    path = _file(name)
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}  # type: ignore[return-value]


def differences_from_preset(config: ModelConfig, letters: str) -> list[str]:
    """What a model has and its preset has not, as words: residual scheme, channel mixer, options of scheme and mixers.

    Options of the channel mixer are left out: its width is set for every model by `match=params`.
    """
    values, defaults = dataclasses.asdict(config), dataclasses.asdict(ModelConfig())
    preset, found = overlay(config.preset or ""), []

    def compare_options(part: str, block: str) -> None:
        usual = {**defaults[part][block], **preset.get(part, {}).get(block, {})}
        chosen = values[part][block]
        found.extend(_describe_option(key, value) for key, value in chosen.items() if value != usual[key])

    for part in ("residual", "channel"):
        chosen = values[part]["name"]
        found += [chosen] if chosen != preset.get(part, defaults[part])["name"] else []
    compare_options("residual", values["residual"]["name"])
    mixers = registry.mixer_by_letter()
    for name in sorted({mixers[letter].name for letter in letters}):
        compare_options("mixers", name)
    return found


def _describe_option(option: str, value: Any) -> str:
    """An option as a legend says it: "output_gate", "no output_gate", "aux_weight=0"."""
    if isinstance(value, bool):
        return option if value else f"no {option}"
    if value is None:
        return f"{option}=null"
    return f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"


def label(config: Config, letters: str) -> str:
    """The name of a model in a legend: its preset, or its dominant mixer, and where it differs from that.

    Differences are a layout or pattern of one's own, and a residual scheme, a channel mixer or options of scheme and
    mixers that the preset does not have; then comes the synthetic task, if it is trained on one.
    """
    return " ".join([*_architecture(config, letters), *_after_the_name(config, letters)])


def _after_the_name(config: Config, letters: str) -> list[str]:
    """What a model has and its preset has not, and the synthetic task that it is trained on."""
    task = [config.data.name] if config.data.name in TASKS else []
    return differences_from_preset(config.model, letters) + task


def short_labels(models: Sequence[tuple[Config, str]]) -> list[str]:
    """The label of every model, given as (configuration, layers), without differences that all of them share.

    Where all labels are equal, they are returned whole.
    """
    if len({label(*model) for model in models}) < 2:
        return [label(*model) for model in models]
    differences = [_after_the_name(*model) for model in models]
    shared = set.intersection(*map(set, differences))
    return [
        " ".join([*_architecture(*model), *(x for x in own if x not in shared)])
        for model, own in zip(models, differences, strict=True)
    ]


def dominant_mixer(letters: str) -> registry.Block:
    """The mixer that a model is named after: the most frequent one that is not plain attention."""
    others = [x for x in letters if x != "F"] or list(letters)
    return registry.mixer_by_letter()[max(sorted(set(others)), key=others.count)]


def model_color(config: ModelConfig, letters: str) -> str:
    """The colour of a model in every figure, #rrggbb: of its dominant mixer."""
    if set(letters) == {"F"}:  # plain attention in several streams is known by its streams
        return registry.get("residual", config.residual.name).color
    return dominant_mixer(letters).color


def shorten_pattern(letters: str) -> str:
    """FFFF -> F*4, anything else as it is."""
    return f"{letters[0]}*{len(letters)}" if len(set(letters)) == 1 and len(letters) > 1 else letters


def _architecture(config: Config, letters: str) -> list[str]:
    """The preset or dominant mixer, and the layout or pattern where it is not the usual one."""
    preset, layout = config.model.preset, layout_name(letters)
    if set(letters) == {"F"} and preset in (None, "transformer"):
        return ["transformer"]
    if preset in (None, "transformer"):  # a pattern of one's own on top of the default preset
        return [dominant_mixer(letters).name, layout or shorten_pattern(letters)]
    return [preset, *([layout] if layout not in (None, "interlaced_sf") else [])]

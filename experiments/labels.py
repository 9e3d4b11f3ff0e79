"""Names of models for people: in legends, in the lines of a sweep and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.presets import differences_from_preset
from experiments.schema import Config
from zoo import pattern, registry
from zoo.config import ModelConfig


def label(config: Config, letters: str) -> str:
    """The name of a model in a legend: its preset, or its dominant mixer, and where it differs from that.

    Differences are a layout or pattern of one's own, and a residual scheme, a channel mixer or mixers' options that
    the preset does not have.
    """
    return " ".join([*_architecture(config, letters), *differences_from_preset(config.model, letters)])


def short_labels(models: Sequence[tuple[Config, str]]) -> list[str]:
    """The label of every model, given as (configuration, layers), without differences that all of them share.

    Models of one label keep it whole: there is nothing to tell apart.
    """
    if len({label(*model) for model in models}) < 2:
        return [label(*model) for model in models]
    differences = [differences_from_preset(config.model, letters) for config, letters in models]
    shared = set.intersection(*map(set, differences))
    return [
        " ".join([*_architecture(*model), *(x for x in own if x not in shared)])
        for model, own in zip(models, differences, strict=True)
    ]


def dominant_mixer(letters: str) -> registry.Block:
    """The mixer that makes a model what it is: the most frequent one that is not plain attention."""
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
    preset, layout = config.model.preset, pattern.layout_name(letters)
    if set(letters) == {"F"} and preset in (None, "transformer"):
        return ["transformer"]
    if preset in (None, "transformer"):  # a pattern of one's own on top of the default preset
        return [dominant_mixer(letters).name, layout or shorten_pattern(letters)]
    return [preset, *([layout] if layout not in (None, "interlaced_sf") else [])]

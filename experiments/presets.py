"""The architectures that conf/model/ names, as model configurations of one size."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.paths import CONF
from zoo import registry
from zoo.config import ModelConfig, from_dict

_PRESETS = CONF / "model"


def architectures(like: ModelConfig) -> dict[str, ModelConfig]:
    """Preset -> its configuration, with the width, heads, depth and backend of `like`; the transformer first."""
    shared = {key: getattr(like, key) for key in ("d_model", "n_heads", "depth", "tie_embeddings", "backend")}
    return {name: from_dict(ModelConfig, {**overlay(name), **shared}) for name in _names()}


def compared() -> list[str]:
    """The presets that a comparison of architectures has: all but those whose file begins "# Variant of ...".

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
    """A model's residual scheme, channel mixer and mixers' options that its preset does not have, in words."""
    defaults, preset = dataclasses.asdict(ModelConfig()), overlay(config.preset or "")
    found = []
    for part in ("residual", "channel"):
        chosen = getattr(config, part).name
        found += [chosen] if chosen != preset.get(part, defaults[part])["name"] else []
    mixers = registry.mixer_by_letter()
    for name in sorted({mixers[letter].name for letter in letters}):
        usual = {**defaults["mixers"][name], **preset.get("mixers", {}).get(name, {})}
        chosen = dataclasses.asdict(getattr(config.mixers, name))
        found += [_describe_option(key, value) for key, value in chosen.items() if value != usual[key]]
    return found


def _describe_option(option: str, value: Any) -> str:
    """An option as a legend says it: "output_gate", "no output_gate", "aux_weight=0"."""
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"

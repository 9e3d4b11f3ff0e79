"""The architectures that conf/model/ names, as model configurations of one size."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from zoo import registry
from zoo.config import ModelConfig, from_dict

FOLDER = Path(__file__).resolve().parent.parent / "conf" / "model"


def architectures(like: ModelConfig) -> dict[str, ModelConfig]:
    """Preset -> its configuration, with the width, heads, depth and backend of `like`; the transformer first."""
    shared = {key: getattr(like, key) for key in ("d_model", "n_heads", "depth", "tie_embeddings", "backend")}
    names = sorted(
        (path.stem for path in FOLDER.glob("*.yaml")), key=lambda name: (name != "transformer", name)
    )
    return {name: from_dict(ModelConfig, {**overlay(name), **shared}) for name in names}


@functools.lru_cache
def overlay(name: str) -> dict[str, Any]:
    """What conf/model/NAME.yaml sets; nothing if there is no such preset."""
    path = FOLDER / f"{name}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}  # type: ignore[return-value]


def departures(config: ModelConfig, letters: str) -> list[str]:
    """Where a model is not its preset: residual scheme, channel mixer, options of the mixers in its pattern."""
    defaults, preset = dataclasses.asdict(ModelConfig()), overlay(config.preset or "")
    found = []
    for part in ("residual", "channel"):
        chosen = getattr(config, part).name
        found += [chosen] if chosen != preset.get(part, defaults[part])["name"] else []
    mixers = registry.mixer_by_letter()
    for name in sorted({mixers[letter].name for letter in letters}):
        usual = {**defaults["mixers"][name], **preset.get("mixers", {}).get(name, {})}
        chosen = dataclasses.asdict(getattr(config.mixers, name))
        found += [_said(key, value) for key, value in chosen.items() if value != usual[key]]
    return found


def _said(option: str, value: Any) -> str:
    """An option as a legend says it: "output_gate", "no output_gate", "aux_weight=0"."""
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"

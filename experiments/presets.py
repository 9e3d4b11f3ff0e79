"""The architectures that conf/model/ names, as model configurations of one size."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

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


def departures(config: ModelConfig) -> list[str]:
    """The residual scheme and channel mixer, where they are not those of the configuration's preset."""
    defaults, preset = ModelConfig(), overlay(config.preset or "")
    found = []
    for part in ("residual", "channel"):
        usual = preset.get(part, dataclasses.asdict(getattr(defaults, part)))["name"]
        chosen = getattr(config, part).name
        found += [chosen] if chosen != usual else []
    return found

"""The models of a verdict: the plain transformer, and the same with a block or its nearest relative in its place."""

from __future__ import annotations

import copy
import dataclasses

from zoo import registry
from zoo.config import ModelConfig
from zoo.errors import UserError, unknown

PLAIN = {"mixer": "attention", "residual": "add", "channel": "swiglu"}
"""The transformer's block of each kind."""


def find_block(name: str | None) -> registry.Block:
    """The block to be judged, of any kind. Raises UserError for none, an unknown one, or the transformer's."""
    names = {found: block for kind in registry.KINDS for found, block in registry.blocks(kind).items()}
    judged = sorted(set(names) - set(PLAIN.values()))
    if name is None:
        raise UserError(f"job=verdict needs block=NAME, one of {', '.join(judged)}")
    if name in PLAIN.values():
        raise UserError(
            f"block={name} is part of the plain transformer, which others are compared with; choose another"
        )
    if name not in names:
        raise unknown("block", name, judged)
    return names[name]


def nearest_relative(block: registry.Block, asked: str | None) -> registry.Block | None:
    """The block to compare with beside the transformer's: the one asked for, or the most alike of its kind.

    Most alike: of the same family, before that with the same mask too, the first by name; None where there is none, or
    where asked is "none". Raises UserError for one of another kind.
    """
    others = {
        name: other
        for name, other in registry.blocks(block.kind).items()
        if name not in (block.name, PLAIN[block.kind])
    }
    if asked == "none":
        return None
    if asked is not None:
        if asked not in others:
            raise unknown(
                f"{block.kind} to compare {block.name} with (verdict.relative)", asked, [*others, "none"]
            )
        return others[asked]
    alike = sorted(
        (other.mask != block.mask, other.name) for other in others.values() if other.family == block.family
    )
    return others[alike[0][1]] if alike else None


def models(
    base: ModelConfig, block: registry.Block, relative: registry.Block | None
) -> dict[str, ModelConfig]:
    """The models by the name of their block, the transformer first: of the same width, heads and depth as `base`.

    A mixer stands in every layer, a residual scheme or channel mixer around or beside full attention in every layer.
    """
    plain = dataclasses.replace(
        base, preset="transformer", pattern="F", residual=_default("residual"), channel=_default("channel")
    )
    found = {"transformer": plain}
    for one in (block, relative):
        if one is not None:
            found[one.name] = _with_block(plain, one)
    return found


def _default(part: str) -> object:
    return getattr(ModelConfig(), part)


def _with_block(plain: ModelConfig, block: registry.Block) -> ModelConfig:
    model = copy.deepcopy(plain)
    if block.kind == "mixer":
        return dataclasses.replace(model, preset=None, pattern=block.letter)
    getattr(model, block.kind).name = block.name
    return model

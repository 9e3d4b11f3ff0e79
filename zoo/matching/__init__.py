"""Matching: the widths that give a model as many parameters, FLOPs or bytes of decode state as the plain transformer.

The reference is the plain transformer of the same d_model, heads and depth (pattern F, residual add, SwiGLU of its
default width). Numbers agree within 1 %, or the model is refused with what is possible.
"""

from __future__ import annotations

from zoo.config import ModelConfig
from zoo.errors import unknown
from zoo.matching.hidden_width import match_flops, match_parameters
from zoo.matching.state import match_state

__all__ = ["MATCHES", "match", "match_flops", "match_parameters", "match_state"]

MATCHES = ("params", "flops", "state", "state+params", "state+flops")


def match(config: ModelConfig, by: str, *, seq_len: int, length: int | None = None) -> ModelConfig:
    """The configuration with the widths that `by`, one of MATCHES, asks for.

        params   parameters beside the embedding, by the channel mixer's hidden width
        flops    FLOPs of the layers' forward pass, a token of `length`, by the same width
        state    bytes of the decode state after `length` tokens, by the mixers' head widths
        state+…  the state first, and then the other with what is left

    seq_len: the length that the model is configured for; length: None for seq_len. Raises UserError, saying what is
    possible, where no widths come within 1 %, and where the configuration names a width that is not the solved one.
    """
    if by not in MATCHES:
        raise unknown("match", by, MATCHES)
    length = seq_len if length is None else length
    parts = by.split("+")
    if "state" in parts:
        config = match_state(config, seq_len, length)
    if "params" in parts:
        config = match_parameters(config, seq_len)
    if "flops" in parts:
        config = match_flops(config, seq_len, length)
    return config

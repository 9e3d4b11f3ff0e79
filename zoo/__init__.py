"""Interchangeable sequence-model blocks and the language model built from them."""

from zoo.config import ModelConfig
from zoo.context import Context
from zoo.errors import UserError
from zoo.generate import generate
from zoo.interfaces import Dims, Mixer
from zoo.io import export, load
from zoo.model import LanguageModel
from zoo.registry import register_channel, register_mixer, register_residual
from zoo.tokenization import tokenizer

__all__ = [
    "Context",
    "Dims",
    "LanguageModel",
    "Mixer",
    "ModelConfig",
    "UserError",
    "export",
    "generate",
    "load",
    "register_channel",
    "register_mixer",
    "register_residual",
    "tokenizer",
]

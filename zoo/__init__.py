"""Interchangeable sequence-model blocks, and the language model built from them.

model.py               the language model;  config.py: its configuration and the language of its pattern
mixers/                sequence mixers;  channels/: channel mixers;  residuals/: residual schemes, one file a block
modules/               layers and decode states that blocks share
interfaces.py          what a block has to offer;  registry.py: which blocks there are;  options.py: their options
context.py             facts about a pass's tokens;  context_parallel.py: a sequence on several ranks
probes/                what blocks record and how it becomes a table
generate.py            sampling text;  tokenization.py: tokenizers that travel with a model
pretrained/            published models, in Hugging Face's layout, in both directions
hf.py                  models of this project as classes of transformers, which must be installed
io.py, files.py        models and checkpoints on disk
cost.py, matching.py   parameters, FLOPs and decode state; widths that make models equal in them
recompute.py           recomputing activations in the backward;  backends.py: whether a backend serves a model
errors.py              errors that speak to a person
"""

from zoo.config import ModelConfig
from zoo.context import Context
from zoo.errors import UserError
from zoo.generate import generate
from zoo.interfaces import Dims, Mixer
from zoo.io import export, load
from zoo.model import LanguageModel
from zoo.pretrained import convert, from_pretrained
from zoo.registry import register_channel, register_mixer, register_residual
from zoo.tokenization import tokenizer

__all__ = [
    "Context",
    "Dims",
    "LanguageModel",
    "Mixer",
    "ModelConfig",
    "UserError",
    "convert",
    "export",
    "from_pretrained",
    "generate",
    "load",
    "register_channel",
    "register_mixer",
    "register_residual",
    "tokenizer",
]

"""Tokenizers. Adding one is a file here with a `@register_tokenizer` class, and its import below."""

from experiments.data.tokenization import bpe, byte_tokenizer, gpt2
from experiments.data.tokenization.base import SEPARATOR, TOKENIZERS, Tokenizer, from_json, register_tokenizer

__all__ = [
    "SEPARATOR",
    "TOKENIZERS",
    "Tokenizer",
    "bpe",
    "byte_tokenizer",
    "from_json",
    "gpt2",
    "register_tokenizer",
]

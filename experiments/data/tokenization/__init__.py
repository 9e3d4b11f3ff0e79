"""Tokenizers. Adding one is a file here with a `@register_tokenizer` class, and its import below."""

from experiments.data.tokenization import byte_tokenizer, gpt2, trained_bpe
from experiments.data.tokenization.base import SEPARATOR, TOKENIZERS, Tokenizer, from_json, register_tokenizer

__all__ = [
    "SEPARATOR",
    "TOKENIZERS",
    "Tokenizer",
    "byte_tokenizer",
    "from_json",
    "gpt2",
    "register_tokenizer",
    "trained_bpe",
]

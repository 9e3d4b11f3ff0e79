"""Tokenizers. Adding one is a file here with a `@register_tokenizer` class, its import below, and an
entry of `zoo.tokenization.RESTORE`, which reads what it saved."""

from experiments.data.tokenization import bpe, byte_tokenizer, gpt2
from experiments.data.tokenization.base import TOKENIZERS, register_tokenizer
from zoo.tokenization import SEPARATOR, Tokenizer, from_json

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

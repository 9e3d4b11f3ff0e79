"""Tokenizers. Adding one is a file here with a `@register_tokenizer` class, and its import below."""

from experiments.data.tokenization import bpe, gpt2, raw
from experiments.data.tokenization.base import SEPARATOR, TOKENIZERS, Tokenizer, from_json, register_tokenizer

__all__ = ["SEPARATOR", "TOKENIZERS", "Tokenizer", "bpe", "from_json", "gpt2", "raw", "register_tokenizer"]

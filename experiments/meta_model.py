"""The model of a configuration without storage, before its text is read."""

from __future__ import annotations

from experiments.schema import Config
from zoo import cost
from zoo.model import LanguageModel


def meta_model(config: Config) -> LanguageModel:
    """The model of a configuration on the meta device."""
    return cost.on_meta(config.model, vocab_size=nominal_vocabulary(config), seq_len=config.data.seq_len)


def nominal_vocabulary(config: Config) -> int:
    """Vocabulary before the text is read; a BPE trained on a tiny text may end up smaller."""
    return {"bytes": 257, "gpt2": 50257}.get(config.data.tokenizer, config.data.vocab_size)

"""The pieces of a run, made from its configuration and its text."""

from __future__ import annotations

from experiments.data import Batches, Corpus
from experiments.schema import Config
from zoo.model import LanguageModel
from zoo.recompute import Recompute


def make_model(config: Config, corpus: Corpus) -> LanguageModel:
    """The model of a configuration with its initial weights, on the CPU."""
    vocabulary = corpus.tokenizer.vocab_size
    model = LanguageModel(config.model, vocab_size=vocabulary, seq_len=config.data.seq_len, seed=config.seed)
    model.recompute = Recompute(config.trainer.recompute, config.trainer.recompute_block)
    return model


def make_batches(config: Config, corpus: Corpus) -> Batches:
    """The training batches of a configuration."""
    d, tokenizer = config.data, corpus.tokenizer
    return Batches(corpus.splits["train"], d.seq_len, d.batch_size, config.seed, d.pack, tokenizer.bos_id)


def tokens_per_step(config: Config) -> int:
    """Tokens of one optimiser step: batch_size · seq_len · accumulate."""
    return config.data.batch_size * config.data.seq_len * config.trainer.accumulate

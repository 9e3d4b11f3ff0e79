"""The published numbers of the real WikiText-103 (needs its files)."""

import os
from pathlib import Path

import pytest

from experiments.data import DataConfig, prepare
from zoo.tokenization import from_json

pytestmark = pytest.mark.slow


def test_tokens_words_and_articles(cache):
    place = os.environ.get("ARCHZOO_WIKITEXT")
    if not place:
        pytest.skip("set ARCHZOO_WIKITEXT to the folder that holds wikitext-103-raw-v1 and gpt2")
    folder = Path(place) / "wikitext-103-raw-v1"
    cfg = DataConfig(
        name="wikitext103",
        path=str(folder),
        # The training split is not needed for these counts.
        train_path=str(next(folder.glob("validation-*.parquet"))),
        tokenizer="gpt2",
        gpt2_path=str(Path(place) / "gpt2"),
        cache_dir=str(cache),
    )
    corpus = prepare(cfg, progress=False)
    for name, tokens, words in (("validation", 247_289, 217_646), ("test", 283_287, 245_569)):
        split = corpus.splits[name]
        assert split.n_documents == 60
        assert len(split.tokens) - split.n_documents == tokens
        assert split.n_words == words
    assert corpus.tokenizer.vocab_size == 50_257
    assert corpus.tokenizer.bos_id == 50_256
    sample = corpus.splits["test"].tokens[1:20_000]
    text = corpus.tokenizer.decode(sample)
    assert from_json(corpus.tokenizer.to_json()).encode(text.split("<|endoftext|>")[0]) == list(
        sample[: list(sample).index(50_256)] if 50_256 in sample else sample
    )

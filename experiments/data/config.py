"""The `data` node of the configuration."""

from dataclasses import dataclass

PACKS = ("stream", "document")


@dataclass
class DataConfig:
    """The text to train on, and how it is cut.

    name: pydocs | wikitext103 | wikitext2 | text.
    path: text: a file, a folder or a glob. wikitext: a folder of parquet in the public layout
        (`{train,validation,test}-*.parquet`, column `text`); None reads the hub.
    train_path: wikitext: parquet file, folder or glob that replaces the training split.
    tokenizer: bytes | bpe (trained on the training split) | gpt2.
    vocab_size: entries of the tokenizer that bpe trains.
    gpt2_path: folder with encoder.json and vocab.bpe, or vocab.json and merges.txt; None reads the hub.
    pack: stream (windows of one long stream) | document (no attention across documents).
    seq_len, batch_size: tokens a sample, samples a micro-batch.
    cache_dir: folder of extracted text and tokens; None means the environment's ARCHZOO_CACHE, or else
        `.cache/archzoo` in the repository.
    revision: wikitext from the hub: commit of the data set; None means the one this project was tested with.
    """

    name: str = "pydocs"
    path: str | None = None
    train_path: str | None = None
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    gpt2_path: str | None = None
    pack: str = "stream"
    seq_len: int = 128
    batch_size: int = 8
    cache_dir: str | None = None
    revision: str | None = None

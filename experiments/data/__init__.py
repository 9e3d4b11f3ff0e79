"""Text to batches: sources, tokenizers, a memory-mapped cache, training batches and evaluation windows."""

from experiments.data.batches import Batches, document_boundaries, eval_windows
from experiments.data.config import DataConfig
from experiments.data.corpus import Corpus, Split
from experiments.data.pipeline import check, fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.tokenization import TOKENIZERS

__all__ = [
    "SOURCES",
    "SPLITS",
    "TOKENIZERS",
    "Batches",
    "Corpus",
    "DataConfig",
    "Split",
    "check",
    "document_boundaries",
    "eval_windows",
    "fingerprint",
    "prepare",
]

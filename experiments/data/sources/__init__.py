"""Sources of text. Adding one is a file here with a `@register_source` class, and its import below."""

from experiments.data.sources import pydocs, text, wikitext
from experiments.data.sources.base import (
    SOURCES,
    SPLITS,
    Contents,
    Document,
    Source,
    check_sizes,
    contents,
    read_split,
    register_source,
)

__all__ = [
    "SOURCES",
    "SPLITS",
    "Contents",
    "Document",
    "Source",
    "check_sizes",
    "contents",
    "pydocs",
    "read_split",
    "register_source",
    "text",
    "wikitext",
]

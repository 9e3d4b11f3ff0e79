"""Sources of text. Adding one is a file here with a `@register_source` class, and its import below.

base.py      the interface of a source, and the table of all sources
pydocs.py    the prose that ships with Python, the default;  wikitext.py: WikiText-103 and WikiText-2
hub.py       any data set of the package datasets
text.py      your own text;  folders.py: its files and splits;  tables.py: texts in a column of a table
"""

from experiments.data.sources import hub, pydocs, text, wikitext
from experiments.data.sources.base import (
    SOURCES,
    SPLITS,
    Contents,
    Document,
    Source,
    check_sizes,
    contents,
    read_split,
    refuse,
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
    "hub",
    "pydocs",
    "read_split",
    "refuse",
    "register_source",
    "text",
    "wikitext",
]

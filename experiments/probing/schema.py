"""Units and meanings of the columns of probe tables, written into each parquet file with them.

A field of a table has the metadata ``unit`` and ``meaning`` (UTF-8), so that who reads the file needs no other source.
"""

from __future__ import annotations

import pyarrow as pa

Meaning = tuple[str, str]  # unit, meaning

MEANINGS: dict[str, dict[str, Meaning]] = {
    "measures": {
        "step": ("steps", "optimiser steps done"),
        "layer": ("", "from 0; as many as there are layers: after the last; empty: whole model"),
        "part": ("", "mixer, channel, head, or empty for the whole model"),
        "block": ("", "name of the mixer or channel mixer"),
        "head": ("", "from 0; empty where there are no heads"),
        "axis": ("", "what start and end count: position, distance, expert, rank, step, quantile"),
        "start": ("", "first value of the bucket"),
        "end": ("", "one past the last; of a quantile: the quantile"),
        "measure": ("", "what the number is"),
        "value": ("", "the number"),
        "count": ("", "observations it is the mean of"),
    },
    "maps": {
        "layer": ("", "from 0; as many as there are layers: after the last; empty: whole model"),
        "block": ("", "name of the mixer or channel mixer"),
        "head": ("", "from 0; empty where there are no heads"),
        "kind": ("", "attention, or selection (1: may be read)"),
        "query": ("", "position in the sentence"),
        "key": ("", "position in the sentence"),
        "weight": ("", "what of the key goes into the query; pairs below 1e-3 are left out"),
    },
    "sentence": {
        "position": ("", "position in the sentence, from 0"),
        "token": ("", "token id"),
        "text": ("", "the token as text"),
    },
    "routes": {
        "layer": ("", "from 0; as many as there are layers: after the last; empty: whole model"),
        "part": ("", "mixer, channel, head, or empty for the whole model"),
        "block": ("", "name of the mixer or channel mixer"),
        "head": ("", "from 0; empty where there are no heads"),
        "position": ("", "position in the sentence, from 0"),
        "rank": ("", "0: the first choice"),
        "choice": ("", "timeline, memory or expert"),
        "probability": ("", "of this choice"),
    },
    "assignments": {
        "layer": ("", "from 0; as many as there are layers: after the last; empty: whole model"),
        "part": ("", "mixer, channel, head, or empty for the whole model"),
        "block": ("", "name of the mixer or channel mixer"),
        "head": ("", "from 0; empty where there are no heads"),
        "choice": ("", "first choice: timeline, memory or expert"),
        "token": ("", "token id"),
        "text": ("", "the token as text"),
        "count": ("", "how often a token of this kind went there"),
    },
    "samples": {
        "prompt": ("", "what the model was given"),
        "text": ("", "what it wrote after that"),
        "temperature": ("", "0: the most likely token"),
        "sample_seed": ("", "seed of the sampling"),
        "tokens_per_second": ("tokens/s", "decoding speed, prompt included"),
    },
}


def described(table: str, schema: pa.Schema) -> pa.Schema:
    """The schema with the unit and the meaning of each column as metadata. Raises KeyError for a column without."""
    meanings = MEANINGS[table]
    return pa.schema(
        [
            field.with_metadata(dict(zip(("unit", "meaning"), meanings[field.name], strict=True)))
            for field in schema
        ]
    )

"""The hash that names content: runs, texts, tokenizers and cached facts."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def content_hash(value: Any, digits: int = 32) -> str:
    """First `digits` hexadecimal digits of the SHA-256 of plain values as canonical JSON (keys sorted, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]

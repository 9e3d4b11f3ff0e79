"""Tokenizers as they travel with a model: text to token ids and back, from what the model's card holds.

Making one of a text (training a BPE, reading GPT-2's files) is the harness's; here is what a saved one needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zoo.errors import UserError
from zoo.files import fit
from zoo.io import read_card

SEPARATOR = "<|endoftext|>"
_EVERY_BYTE = "".join(map(chr, (*range(0x1000), *range(0x1000, 0x110000, 0x1000))))  # that UTF-8 has
_CHANGEABLE = (  # by normalisers, strippers and marks for blanks
    f" two  blanks \t\r\n . Case , don't e\u0301 \u00e9 \ufb01 \uff21 \u2581a\u2581 \u0120b ``'' 1\u00b2 \u200b"
    f"{SEPARATOR} \n"
)
_SWITCH = "TOKENIZERS_PARALLELISM"
_SET_BY_USER = _SWITCH in os.environ


class Tokenizer(Protocol):
    """Text to token ids and back: decode(encode(text)) == text for every text that UTF-8 can write.

    `encode` never yields `bos_id`, not even for a text that spells the separator out; `decode` writes it as
    `<|endoftext|>`, or as a published tokenizer spells its own. Ids that do not form UTF-8 decode with replacement
    characters.
    """

    name: str
    vocab_size: int
    bos_id: int
    whole_texts: bool
    """Whether it is another's, whose words nobody here knows: texts are not cut for it, and it may rewrite them (é as
    one character, say). Scores stay those of the bytes that the text has."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text as integer arrays, in parallel where the library can."""

    def identity(self) -> dict[str, Any]:
        """The facts that identify this tokenizer: kind, size, hash of its tables."""

    def to_json(self) -> str:
        """Everything `from_json` needs to make the same tokenizer anywhere."""

    def as_written(self, text: str) -> str:
        """The text as `decode` gives it back: itself, or composed (NFC) where a published tokenizer does that."""

    def published(self) -> tuple[str, str]:
        """As tokenizer.json of the library tokenizers, which gives the same ids; and the separator's spelling."""


class ByteTokenizer:
    """The 256 byte values of UTF-8, and 256 for the document separator."""

    name = "bytes"
    vocab_size = 257
    bos_id = 256
    whole_texts = False

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of byte values; bytes that are no UTF-8 become replacement characters."""
        return b"".join(bytes([i]) if i < 256 else SEPARATOR.encode() for i in ids).decode("utf-8", "replace")

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of each text, uint8 arrays."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def identity(self) -> dict[str, Any]:
        """Kind and size."""
        return {"kind": "bytes", "vocab_size": self.vocab_size}

    def to_json(self) -> str:
        """The kind, which is all there is to know."""
        return json.dumps({"kind": "bytes"})

    def as_written(self, text: str) -> str:
        """The text itself."""
        return text

    def published(self) -> tuple[str, str]:
        """A byte-level BPE without merges, whose 256 entries have the bytes as ids."""
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend

        # The library writes a byte as a character; those of two and more bytes in UTF-8 say which by their order.
        printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
        others = [b for b in range(256) if b not in printable]
        spelled = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
        backend = Backend(models.BPE(vocab={spelled[b]: b for b in range(256)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(SEPARATOR, special=True, normalized=False)])
        return _begun(backend, SEPARATOR, self.bos_id).to_str(), SEPARATOR


class BytePairTokenizer:
    """A tokenizer held by the tokenizers library. ``kind`` is the name it is registered under.

    separator: the token before a document, by its spelling or its id; "pretrained" ones have their own.
    Raises LookupError for one that is not in the vocabulary.
    """

    def __init__(self, kind: str, backend: Any, separator: str | int = SEPARATOR) -> None:
        # Without this a document that spells the separator out would be cut in two there.
        backend.encode_special_tokens = True
        self.whole_texts = kind == "pretrained"
        if self.whole_texts:  # a file may say how its author cut and padded texts for a model
            backend.no_truncation()
            backend.no_padding()
        self._kind = kind
        self._backend = backend
        self._separator = separator
        # Ids may have gaps in a published vocabulary.
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        found = backend.token_to_id(separator) if isinstance(separator, str) else separator
        if found is None or backend.id_to_token(found) is None:
            raise LookupError(f"the tokenizer has no token {separator!r}")
        self.bos_id = found
        self.name = f"bpe-{self.vocab_size}" if kind == "bpe" else kind

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> BytePairTokenizer:
        """The tokenizer from what `to_json` wrote. Raises UserError for one that would change texts."""
        from tokenizers import Tokenizer as Backend

        _check_tables(saved["kind"], json.loads(saved["tokenizer"]))
        return cls(saved["kind"], Backend.from_str(saved["tokenizer"]), saved.get("separator", SEPARATOR))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a separator that it spells out is text, too."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, separators included."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, uint32 arrays, on all cores."""
        with parallel():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def identity(self) -> dict[str, Any]:
        """Kind, size and the SHA-256 of the library's tables."""
        tables = hashlib.sha256(self._backend.to_str().encode()).hexdigest()
        return {"kind": self._kind, "vocab_size": self.vocab_size, "tables": tables, **self._own_separator()}

    def to_json(self) -> str:
        """The kind and the library's own form of the tokenizer."""
        return json.dumps({"kind": self._kind, "tokenizer": self._backend.to_str(), **self._own_separator()})

    def as_written(self, text: str) -> str:
        """The text itself, or composed (NFC) where a published tokenizer does that."""
        normalizer = self._backend.normalizer if self.whole_texts else None
        return text if normalizer is None else normalizer.normalize_str(text)

    def published(self) -> tuple[str, str]:
        """The library's own form, and how the separator is spelled."""
        separator = self._backend.id_to_token(self.bos_id)
        if self.whole_texts:  # it was published with what stands before a text
            return self._backend.to_str(), separator
        copy = type(self._backend).from_str(self._backend.to_str())
        return _begun(copy, separator, self.bos_id).to_str(), separator

    def _own_separator(self) -> dict[str, Any]:
        return {} if self._separator == SEPARATOR else {"separator": self._separator}


_LARGEST = 2**22
"""Above all ids of a published vocabulary, and of one that a model has memory for."""
_TABLES = {
    "model": {"type": str, "vocab": {str: range(_LARGEST)}},
    "added_tokens?": [
        {"id": range(_LARGEST), "content": str, "special": bool, "lstrip": bool, "rstrip": bool}
    ],
}


def _check_tables(kind: str, tables: Any) -> None:
    """Raise UserError unless the tables of the tokenizers library are a byte-level BPE that keeps a text as it is.

    A published one may compose characters (NFC), as Qwen's does. Other kinds lose text, or draw tokens at random.
    """
    try:
        fit(tables, _TABLES)
        wrong = _why_lossy(kind, tables)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"the tables of the tokenizer are damaged: {error}") from error
    if wrong:
        raise UserError(
            f"the tokenizer does not give back the text: {wrong}; only a byte-level BPE does, as of GPT-2, Llama 3 or "
            "Qwen: use another one, or data.tokenizer=bpe"
        )


def _why_lossy(kind: str, tables: dict[str, Any]) -> str | None:
    """Why a text does not come back, as far as the tables tell; None where they tell nothing."""
    model, splitters = tables["model"], _parts(tables.get("pre_tokenizer"), "pretokenizers")
    if model["type"] != "BPE" or "ByteLevel" not in [x["type"] for x in splitters]:
        return f"it is a {model['type']} of other symbols than bytes"
    if [x["type"] for x in _parts(tables.get("decoder"), "decoders")] != ["ByteLevel"]:
        return "its decoder is not that of bytes"
    if model.get("dropout"):
        return "its option dropout draws tokens at random"
    for step in _parts(tables.get("normalizer"), "normalizers"):
        if step["type"] != "NFC" or kind != "pretrained":
            return f"its normalizer {step['type']} changes texts"
    if any(x.get("add_prefix_space") for x in splitters):
        return "its option add_prefix_space changes texts"
    for token in tables.get("added_tokens", ()):
        if not token["special"] and (token["lstrip"] or token["rstrip"]):
            return f"its token {token['content']!r} takes the blanks beside it (lstrip, rstrip)"
    return None


def _parts(step: Any, name: str) -> list[dict[str, Any]]:
    """The steps in one of the library, which may be a sequence of them."""
    if step is None:
        return []
    return [y for x in step[name] for y in _parts(x, name)] if step["type"] == "Sequence" else [step]


def _begun(backend: Any, separator: str, bos_id: int) -> Any:
    """The backend, which puts the separator before a text, as every document begins in training."""
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=f"{separator} $A", pair=f"{separator} $A {separator} $B", special_tokens=[(separator, bos_id)]
    )
    return backend


def check_round_trip(
    tokenizer: Tokenizer, text: str = _EVERY_BYTE + _CHANGEABLE, ids: Sequence[int] | np.ndarray | None = None
) -> None:
    """Raise UserError unless a text comes back from its tokens, all of them in the vocabulary.

    A score in bits per byte divides by the bytes of the text, which the tokens of another one do not have.
    ids: the text's tokens, where they are there already.
    """
    ids = np.asarray(tokenizer.encode(text) if ids is None else ids, dtype=np.int64)
    wrong = None
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        wrong = f"gives token id {ids.max()}, outside its vocabulary of {tokenizer.vocab_size}"
    elif tokenizer.bos_id in ids:
        wrong = f"reads words of a text as the separator of documents ({SEPARATOR})"
    elif (back := tokenizer.decode(ids.tolist())) != (text := tokenizer.as_written(text)):
        place = next(
            (i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back))
        )
        around = slice(max(0, place - 8), place + 8)
        wrong = f"does not give back the text: {text[around]!a} comes back as {back[around]!a}"
    if wrong:
        raise UserError(
            f"the tokenizer {tokenizer.name} {wrong}; use data.tokenizer=bpe or data.tokenizer=bytes"
        )


@contextlib.contextmanager
def parallel() -> Iterator[None]:
    """While inside, let the library use its threads; not afterwards, for in a forked child they would hang.

    A value of TOKENIZERS_PARALLELISM that the user set is left as it is.
    """
    if _SET_BY_USER:
        yield
        return
    os.environ[_SWITCH] = "true"
    try:
        yield
    finally:
        os.environ[_SWITCH] = "false"


RESTORE: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    "bytes": lambda saved: ByteTokenizer(),
    "bpe": BytePairTokenizer.restore,
    "gpt2": BytePairTokenizer.restore,
    "pretrained": BytePairTokenizer.restore,
}
"""Kind -> the tokenizer of what its `to_json` wrote."""


def from_json(text: str) -> Tokenizer:
    """The tokenizer that `Tokenizer.to_json` wrote. Raises ValueError for anything else, and as `check_round_trip`."""
    saved = json.loads(text)
    fit(saved, {"kind": str, "tokenizer?": str, "separator?": int | str})
    if saved["kind"] not in RESTORE:
        raise ValueError("not a tokenizer saved by Tokenizer.to_json")
    found = RESTORE[saved["kind"]](saved)
    check_round_trip(found)
    return found


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer that was saved with the model of a finished run, an exported folder or a checkpoint.

        zoo.tokenizer("results/my_sweep/RUN").encode("The meaning of")

    Raises UserError where there is none, or where it is damaged.
    """
    saved = read_card(path).get("tokenizer")
    if saved is None:
        raise UserError(f"no tokenizer was saved with the model at {path}; give the folder of a run")
    try:
        return from_json(saved)
    except Exception as error:  # the tokenizers' library raises bare ones
        raise UserError(
            f"the tokenizer of the model at {path} is damaged ({error}); export it again"
        ) from error

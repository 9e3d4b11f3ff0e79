r"""Tokenizers, and how the configuration makes them: bytes, a BPE trained on the text, GPT-2's, published ones.

Adding one is a class here with `@register_tokenizer`, and an entry of `zoo.tokenization.RESTORE`, which reads what it
saved. Byte-pair encoding: Sennrich et al. 2016; on bytes: Radford et al. 2019 (GPT-2's 50,257 entries, whose files are
under the MIT licence).

GPT-2's pre-tokenizer (` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, and English contractions) splits
a text into words: runs of letters, of digits, of other characters, of blanks. A text can be cut between two words,
except behind a blank: blanks at the end of a text are one word.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

import zoo
from experiments.data.cache import build_once, content_hash
from experiments.data.config import DataConfig
from experiments.system import signals
from zoo.errors import UserError
from zoo.files import read_bytes, read_json
from zoo.io import CARD
from zoo.pretrained import read_tokenizer
from zoo.tokenization import (
    SEPARATOR,
    BytePairTokenizer,
    ByteTokenizer,
    Tokenizer,
    check_round_trip,
    parallel,
)

# Kinds of tokenizers.


class TokenizerKind(Protocol):
    """An entry of the table: how the configuration makes a tokenizer; `zoo.tokenization.RESTORE` reads saved ones."""

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings that cannot work; no network access."""

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        """The facts that decide the tokenizer's content, besides the training text. May read the hub."""

    def make(
        self,
        cfg: DataConfig,
        texts: Callable[[], Iterable[str]],
        training: str,
        cache: Path,
        progress: bool = False,
    ) -> Tokenizer:
        """The tokenizer. progress: say on stderr how far it is, where it takes long.

        texts: returns a new iterator over the training documents; training: hash of their content.
        """


TOKENIZERS: dict[str, TokenizerKind] = {}


def register_tokenizer(name: str) -> Callable[[type], type]:
    """Class decorator: make a kind of tokenizer available as ``data.tokenizer=<name>``."""

    def register(cls: type) -> type:
        TOKENIZERS[name] = cls()
        return cls

    return register


@register_tokenizer("bytes")
class _Bytes:
    def check(self, cfg: DataConfig) -> None:
        pass

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        return ByteTokenizer().identity()

    def make(
        self,
        cfg: DataConfig,
        texts: Callable[[], Iterable[str]],
        training: str,
        cache: Path,
        progress: bool = False,
    ) -> Tokenizer:
        return ByteTokenizer()


# A byte-level BPE, trained on the text.

_TRAINER_VERSION = 1
_SMALLEST, _LARGEST = 257, 2**20  # entries of a BPE that is trained
_TRAINED_FILE = "tokenizer.json"


@register_tokenizer("bpe")
class _Trained:
    def check(self, cfg: DataConfig) -> None:
        if cfg.vocab_size < _SMALLEST:
            raise UserError(
                f"data.vocab_size={cfg.vocab_size} is too small for a byte-level BPE: the 256 bytes and the "
                f"document separator alone take {_SMALLEST}; give at least that, or data.tokenizer=bytes"
            )
        if (
            cfg.vocab_size > _LARGEST
        ):  # tokenizers reserves memory for all entries, and aborts where there is none
            raise UserError(f"data.vocab_size={cfg.vocab_size} must be at most {_LARGEST}")

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        return {"kind": "bpe", "vocab_size": cfg.vocab_size, "trainer": _TRAINER_VERSION}

    def make(
        self,
        cfg: DataConfig,
        texts: Callable[[], Iterable[str]],
        training: str,
        cache: Path,
        progress: bool = False,
    ) -> Tokenizer:
        def build(folder: Path) -> None:
            made = json.loads(train(texts(), cfg.vocab_size, progress).to_json())
            made["sha256"] = content_hash(made["tokenizer"])
            (folder / _TRAINED_FILE).write_text(json.dumps(made), encoding="utf-8")

        key = content_hash([training, self.spec(cfg)])
        folder = build_once(cache / "tokenizers", key, build, _damage_of_trained)
        return BytePairTokenizer.restore(_read_trained(folder))


def train(texts: Iterable[str], vocab_size: int, progress: bool = False) -> BytePairTokenizer:
    """A BPE of ``vocab_size`` entries: `<|endoftext|>` (id 0), the 256 bytes, then merges, most frequent first.

    A text too small for so many merges gives fewer entries. The result depends on nothing but texts and size.
    progress: say on stderr how far it is, where it takes long. Signals are acted upon meanwhile.
    """
    backend = assemble(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fed = (piece for text in texts for piece in pieces(text))
    with parallel():
        train_on(fed, lambda pieces: backend.train_from_iterator(pieces, trainer), progress)
    return BytePairTokenizer("bpe", backend)


def assemble(model: models.BPE) -> Backend:
    """A backend that splits text as GPT-2 does and never puts a space in front."""
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _read_trained(folder: Path) -> dict[str, Any]:
    return read_json(folder / _TRAINED_FILE, {"kind": str, "tokenizer": str, "sha256": str})


def _damage_of_trained(folder: Path) -> str | None:
    try:
        saved = _read_trained(folder)
        if content_hash(saved["tokenizer"]) != saved["sha256"]:
            return f"{_TRAINED_FILE} does not hold what was written"
        BytePairTokenizer.restore(saved)
    except Exception as error:  # the library raises bare Exception for tables that do not fit
        return f"{_TRAINED_FILE}: {error}"
    return None


# Texts in pieces: the tokens of the pieces, joined, are those of the text.

PIECE = 1 << 16
LONGEST_WORD = 1024
"""Characters of a word that stays whole. Training a BPE takes time with the square of a word's length."""
_BLANK = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # \s of the pre-tokenizer
_ENDS_WORD = re.compile(r"[\t\n\r ](?=\S)|(?<=[^\W_])(?=[\W_])|(?<=[A-Za-z])(?=[0-9])")
_STEP = LONGEST_WORD // 2


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """Pieces of ``text`` of about ``length`` characters whose tokens, joined, are those of the whole text.

    A word of more than LONGEST_WORD characters (a sequence of bases, a line in a language without blanks) is cut, in
    the same places whatever the length, and its tokens do not go over a cut. This bounds the time of training and the
    memory of one call, and lets one long document use all cores.
    """
    start = 0
    for end in [*_cuts_in_words(text), len(text)]:
        while end - start > length:
            cut = _word_end(text, start + length, min(end, start + length + 4 * LONGEST_WORD))
            if cut is None:
                break
            yield text[start:cut]
            start = cut
        if start < end or not text:
            yield text[start:end]
        start = end


def has_long_words(text: str) -> bool:
    """Return whether `pieces` cuts inside a word of the text."""
    return next(_cuts_in_words(text), None) is not None


def _word_end(text: str, start: int, stop: int) -> int | None:
    """The first place in text[start:stop] at which it can be cut between two words; None: there is none."""
    boundary = _ENDS_WORD.search(text, start, stop)
    if boundary:
        return boundary.start()
    # Letters and numbers in turn, not all of ASCII.
    places = (i for i in range(start, stop) if text[i - 1].isalnum())
    return next((i for i in places if text[i - 1].isalpha() != text[i].isalpha()), None)


def _cuts_in_words(text: str) -> Iterator[int]:
    """Places every LONGEST_WORD characters in longer words. It looks at steps so short that such a word fills one."""
    place = 0
    while len(step := text[place : place + _STEP]) == _STEP:
        kind = next((kind for kind in _KINDS if kind(step)), None)
        if kind:
            start, end = place, place + _STEP
            while start and kind(text[start - 1]):
                start -= 1
            for length in (_STEP, 1):
                while kind(text[end : end + length]):
                    end = min(end + length, len(text))
            yield from range(start + LONGEST_WORD, end, LONGEST_WORD)
            place = end - end % _STEP
        else:
            place += _STEP


def _all_numbers(text: str) -> bool:
    return text.isnumeric() and not any(map(str.isalpha, text))  # some letters are numerals


_KINDS = (  # of a word's characters: whether a text has no others
    str.isalpha,
    _all_numbers,
    re.compile(rf"(?:[^\w{_BLANK}]|_)+").fullmatch,
    re.compile(rf"[{_BLANK}]+").fullmatch,
)


# Training in a thread, so that signals are handled and progress is shown meanwhile.


def train_on(pieces: Iterable[str], call: Callable[[Iterator[str]], None], progress: bool = False) -> None:
    """call(pieces), in a thread of its own: it comes back to Python, which handles signals, at its end only.

    progress: say on stderr how far it is, where it takes long. Raises what the pieces or ``call`` raise, and Paused
    where room is to be made. The thread then ends while it reads, or with this process.
    """
    work = _Work(pieces, call)
    with tqdm(desc="training a tokenizer: reading", **_bar(progress)) as meter:
        work.start()
        try:
            while work.is_alive():
                work.join(0.1)
                meter.update(work.read - meter.n)
                if not work.reading:
                    meter.set_description_str("training a tokenizer: merging", refresh=False)
                if (signal := signals.received()) is not None:
                    raise signals.Paused(
                        f"stopped by {signal.name} while training a tokenizer; "
                        "the same command starts that again"
                    )
        except BaseException:
            work.stopped = True
            work.join(1)
            raise
    if work.error is not None:
        raise work.error


def _bar(progress: bool) -> dict[str, Any]:
    every = 0.5 if sys.stderr.isatty() else 5.0
    shape = {"bar_format": "{desc}, {n_fmt} characters, {elapsed}", "unit_scale": True}
    return {**shape, "delay": 1, "miniters": 0, "mininterval": every, "disable": not progress}


class _Work(threading.Thread):
    def __init__(self, pieces: Iterable[str], call: Callable[[Iterator[str]], None]) -> None:
        super().__init__(daemon=True)
        self.pieces, self.call = pieces, call
        self.read, self.reading, self.stopped = 0, True, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.call(self._fed())
        except BaseException as error:
            self.error = error

    def _fed(self) -> Iterator[str]:
        for piece in self.pieces:
            if self.stopped:
                raise InterruptedError
            self.read += len(piece)
            yield piece
        self.reading = False


# GPT-2's tokenizer, from its published tables.

_GPT2_REPOSITORY = "gpt2"
_GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


@register_tokenizer("gpt2")
class _GPT2:
    def check(self, cfg: DataConfig) -> None:
        if cfg.gpt2_path is not None:
            _tables_of(*_gpt2_in(cfg.gpt2_path))

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        vocabulary, merges = _tables_of(*_gpt2_files(cfg))
        return {"kind": "gpt2", "tables": content_hash([vocabulary, merges])}

    def make(
        self,
        cfg: DataConfig,
        texts: Callable[[], Iterable[str]],
        training: str,
        cache: Path,
        progress: bool = False,
    ) -> Tokenizer:
        vocabulary, merges = _tables_of(*_gpt2_files(cfg))
        made = BytePairTokenizer("gpt2", assemble(models.BPE(vocab=vocabulary, merges=merges)))
        check_round_trip(made)
        return made


# A published model's, from its tokenizer.json, or that of a run.


@register_tokenizer("pretrained")
class _Pretrained:
    def check(self, cfg: DataConfig) -> None:
        _pretrained(cfg.tokenizer_path)

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        return _pretrained(cfg.tokenizer_path).identity()

    def make(
        self,
        cfg: DataConfig,
        texts: Callable[[], Iterable[str]],
        training: str,
        cache: Path,
        progress: bool = False,
    ) -> Tokenizer:
        return _pretrained(cfg.tokenizer_path)


@functools.lru_cache(maxsize=8)
def _pretrained(place: str | None) -> Tokenizer:
    if place is None:
        raise UserError(
            "data.tokenizer=pretrained needs data.tokenizer_path=FOLDER, a folder with tokenizer.json, or a run"
        )
    folder = Path(place).expanduser()
    return zoo.tokenizer(folder) if (folder / CARD).is_file() else read_tokenizer(folder)


def _gpt2_files(cfg: DataConfig) -> tuple[Path, Path]:
    return _gpt2_of_hub() if cfg.gpt2_path is None else _gpt2_in(cfg.gpt2_path)


def _gpt2_in(place: str) -> tuple[Path, Path]:
    folder = Path(place).expanduser()
    for vocabulary, merges in _GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return folder / vocabulary, folder / merges
    raise UserError(
        f"data.gpt2_path={place} must be a folder that holds encoder.json and vocab.bpe (OpenAI's names) or "
        "vocab.json and merges.txt"
    )


def _gpt2_of_hub() -> tuple[Path, Path]:
    local = (
        "give a folder that holds encoder.json and vocab.bpe with data.gpt2_path=FOLDER, "
        "or use data.tokenizer=bpe"
    )
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UserError(
            f"GPT-2's tokenizer from the hub needs the package huggingface_hub; {local}"
        ) from error

    def get(offline: bool) -> tuple[Path, Path]:
        vocabulary, merges = _GPT2_FILES[1]
        return tuple(
            Path(hf_hub_download(_GPT2_REPOSITORY, name, local_files_only=offline))
            for name in (vocabulary, merges)
        )

    try:
        return get(offline=True)
    except OSError:  # not fetched yet
        try:
            return get(offline=False)
        except OSError as error:
            words = str(error).splitlines()[0]
            raise UserError(f"cannot get GPT-2's tokenizer from the hub: {words}; {local}") from error


def read_tables(vocabulary: Path, merges: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (token to id) and merges, in order. Raises UserError if the files are not GPT-2's."""
    try:
        table = read_json(vocabulary)
        lines = read_bytes(merges).decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read GPT-2's tables {vocabulary} and {merges}: {error}") from error
    if not isinstance(table, dict) or SEPARATOR not in table:
        raise UserError(f"{vocabulary} is not a GPT-2 vocabulary: it has no entry {SEPARATOR}")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    bad = next((pair for pair in pairs if not _is_merge(pair, table)), None)
    if bad is not None:
        raise UserError(f"{merges} does not belong to {vocabulary}: it has the merge {' '.join(bad)!r}")
    return table, pairs


def _is_merge(pair: tuple[str, ...], table: dict[str, int]) -> bool:
    return (
        len(pair) == 2 and {*pair, "".join(pair)} <= table.keys() and SEPARATOR not in (*pair, "".join(pair))
    )


def _tables_of(vocabulary: Path, merges: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """`read_tables`. Raises UserError for tables that would lose text: every byte has a token, every token an id."""
    table, pairs = read_tables(vocabulary, merges)
    instead = "give GPT-2's own files, or train one with data.tokenizer=bpe"
    lacking = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - table.keys())
    if lacking:
        raise UserError(
            f"{vocabulary} cannot encode every text: {len(lacking)} of the 256 byte symbols have no token, "
            f"such as {lacking[-1]!r}; {instead}"
        )
    if not all(type(i) is int for i in table.values()) or sorted(table.values()) != list(range(len(table))):
        raise UserError(
            f"{vocabulary} must number its {len(table):,} tokens from 0 to {len(table) - 1:,}; {instead}"
        )
    return table, pairs

"""Scoring held-out splits: loss a token, perplexity, word perplexity, bits per byte; by document or a carried state.

A window of seq_len tokens moves by stride; every token is scored exactly once, with at least seq_len − stride tokens
before it where there are that many. Words and bytes are those of the raw text, so that tokenizers can be compared.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import zoo
from experiments.configuration.schema import Config
from experiments.costs.model_costs import check_decode_memory, explaining_memory
from experiments.data import Corpus, Split, TaskSet, document_boundaries, eval_windows
from experiments.parallel import group
from experiments.parallel.group import by_shards, pick_precision
from experiments.runs import write_splits
from experiments.scoring.tasks import TaskScore, score_sequences, write_answers
from experiments.system.processes import Sink
from zoo.context import Context
from zoo.model import LanguageModel
from zoo.modules.caches import select_sequences
from zoo.probes import evaluation_mode

# By document: RUN/documents.csv, from which the uncertainty of the test text itself is computed.

FILE = "documents.csv"
COLUMNS = ("split", "document", "tokens", "nats")


def by_document(losses: np.ndarray, tokens: np.ndarray, bos_id: int) -> np.ndarray:
    """Tokens scored and their sum of −ln p by document, float64 [documents, 2].

    losses: −ln p of tokens 1 … N−1, in order; tokens: [N]. A document begins at its separator; the separator that ends
    it counts to it, for it is what the model predicts there.
    """
    document = np.cumsum(tokens[:-1] == bos_id) - 1
    document = np.maximum(document, 0)  # text before the first separator
    number = int(document[-1]) + 1
    counts = np.bincount(document, minlength=number)
    return np.stack([counts, np.bincount(document, losses, minlength=number)], axis=1)


def write_documents(folder: Path, scored: dict[str, np.ndarray]) -> None:
    """Write the rows of these splits (`by_document`), atomically; those of other splits stay.

    Columns: split; document, from 0 in the order of the split; tokens scored; nats, the sum of −ln p over them.
    """
    rows = {
        split: [(place, int(tokens), nats) for place, (tokens, nats) in enumerate(scores.tolist())]
        for split, scores in scored.items()
    }
    write_splits(folder / FILE, COLUMNS, rows)


# By windows.

LONGEST_MEAN_WORD = 50
"""Bytes a word up to which blanks part words. They do not in a sequence of bases, or in some languages."""

Window = tuple[Tensor, Tensor, int]


@dataclasses.dataclass(frozen=True)
class Score:
    """Sum of −ln p over `tokens` scored tokens, and the raw text's words and bytes.

    stride: tokens by which the window moved; None: no window, the decode state was carried through the text.
    documents: tokens and nats by document (`by_document`), where that was asked for.
    """

    nats: float
    tokens: int
    words: int
    bytes: int
    stride: int | None
    documents: np.ndarray | None = None

    def metrics(self) -> dict[str, float | int | None]:
        """loss = nats/tokens; perplexity = e^loss; word perplexity = e^(nats/words); bits/byte = nats/(ln 2·bytes).

        Word perplexity is None where blanks do not part words: at over LONGEST_MEAN_WORD bytes a word.
        """
        loss = self.nats / self.tokens
        has_words = self.bytes <= LONGEST_MEAN_WORD * self.words
        return {
            "loss": loss,
            "perplexity": _exp(loss),
            "word_perplexity": _exp(self.nats / self.words) if has_words else None,
            "bits_per_byte": self.nats / math.log(2) / self.bytes,
            "tokens": self.tokens,
            "words": self.words,
            "bytes": self.bytes,
            "stride": self.stride,
        }


@torch.no_grad()
def score_split(
    model: LanguageModel,
    split: Split,
    *,
    stride: int,
    batch_size: int,
    document_bos: int | None = None,
    separator: int | None = None,
    precision: str = "fp32",
    progress: Any = None,
    windows: int | None = None,
    shards: Any = None,
) -> Score:
    """Score a split with a model in evaluation mode.

    document_bos: windows restart at that token (packing). separator: the token at which documents begin, for their
    scores (None: none). windows: only the first so many (None: all); words and bytes are then counted in proportion to
    the tokens scored. shards: as in `token_losses`.
    """
    losses: list[np.ndarray] | None = None if separator is None else []
    nats, tokens = score_windows(
        model,
        itertools.islice(eval_windows(split, model.seq_len, stride), windows),
        batch_size=batch_size,
        document_bos=document_bos,
        precision=precision,
        progress=progress,
        losses=losses,
        shards=shards,
    )
    documents = None
    if losses is not None:
        documents = by_document(np.concatenate(losses), np.asarray(split.tokens[: tokens + 1]), separator)
    share = tokens / (len(split.tokens) - 1)
    return Score(nats, tokens, round(share * split.n_words), round(share * split.n_bytes), stride, documents)


@torch.no_grad()
def score_windows(
    model: LanguageModel,
    windows: Iterable[Window],
    *,
    batch_size: int,
    document_bos: int | None = None,
    precision: str = "fp32",
    progress: Any = None,
    losses: list[np.ndarray] | None = None,
    shards: Any = None,
) -> tuple[float, int]:
    """Sum of −ln p over the scored tokens of the windows, and how many there are.

    losses: a list that −ln p of the scored tokens is appended to, in their order, float64 [n] a batch.
    shards: as in `token_losses`; all processes of the group have to call it.
    """
    device = model.embedding.weight.device
    training = model.training
    model.eval()
    nats, scored = torch.zeros((), dtype=torch.float64, device=device), 0
    try:
        for tokens, targets, keep in _batched(windows, batch_size):
            bounds = None if document_bos is None else document_boundaries(tokens.numpy(), document_bos)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                window = token_losses(model, tokens.to(device), targets.to(device), bounds, shards)
            nats += (window * keep.to(device)).sum(dtype=torch.float64)
            if losses is not None:
                losses.append(window.double().cpu()[keep].numpy())
            count = int(keep.sum())
            scored += count
            if progress is not None:
                progress(count)
    finally:
        model.train(training)
    return float(nats), scored


def token_losses(
    model: LanguageModel,
    tokens: Tensor,
    targets: Tensor,
    bounds: np.ndarray | None = None,
    shards: Any = None,
) -> Tensor:
    """−ln p of every target, [B, T]; bounds: rows are laid end to end and cut into sequences there.

    shards: the process group whose members compute a part of the tokens each (None: this process computes all).
    """
    shape, cu_seqlens = targets.shape, None
    if bounds is not None:
        tokens, targets = tokens.view(1, -1), targets.view(1, -1)
        cu_seqlens = torch.from_numpy(bounds).to(tokens.device)

    def read(tokens: Tensor, targets: Tensor, ctx: Context) -> Tensor:
        (_, nats, _), _ = model(tokens, ctx, targets)
        return nats

    if shards is None:
        return read(tokens, targets, Context.of(tokens, cu_seqlens)).view(shape)
    return by_shards(read, tokens, targets, cu_seqlens, shards).reshape(shape)


def _batched(windows: Iterable[Window], batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Stack windows of one length: tokens, targets [B, T] and which targets are scored [B, T]."""
    for _, alike in itertools.groupby(windows, key=lambda w: len(w[0])):
        for chunk in _chunks(alike, batch_size):
            tokens, targets = (torch.stack([torch.as_tensor(w[i]).long() for w in chunk]) for i in (0, 1))
            first = torch.tensor([w[2] for w in chunk])
            yield tokens, targets, torch.arange(tokens.shape[1]) >= first[:, None]


def _chunks(items: Iterable[Window], size: int) -> Iterator[list[Window]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def format_metrics(name: str, m: dict[str, float], text: str) -> str:
    """The metrics of a split on one line, all four of text or those of a task; text: its label."""
    if "accuracy" in m:
        return (
            f"{name}: {m['accuracy']:.2%} of {m['answers']:,} answers right (chance {m['chance']:.2%}), "
            f"{m['sequence_accuracy']:.2%} of {m['sequences']:,} sequences, loss {m['loss']:.4f} nats/answer · {text}"
        )
    context = "carried state" if m["stride"] is None else f"stride {m['stride']}"
    words = f"word perplexity {m['word_perplexity']:.2f}, " if m["word_perplexity"] is not None else ""
    return (
        f"{name}: loss {m['loss']:.4f} nats/token, perplexity {m['perplexity']:.2f}, {words}"
        f"{m['bits_per_byte']:.4f} bits/byte "
        f"({m['tokens']:,} tokens, {context}) {f'· {text}' if text else ''}".rstrip()
    )


def score_best(
    config: Config,
    corpus: Corpus | TaskSet,
    folder: Path,
    device: torch.device,
    sink: Sink,
    splits: Iterable[str],
    shards: Any = None,
) -> dict[str, dict[str, Any]]:
    """Split -> metrics of the best weights in a run folder.

    Scores by document, or of a task by position and difficulty, are written into the folder. shards: the processes that
    score texts together (`token_losses`), of which the main one writes.
    """
    model = zoo.load(folder, device, backend=config.model.backend)
    if isinstance(corpus, TaskSet):
        answered = {name: score_task(model, config, corpus, name, device, sink) for name in splits}
        write_answers(folder, answered)
        return {name: score.metrics() for name, score in answered.items()}
    scores = {name: score_model(model, config, corpus, name, device, sink, shards) for name in splits}
    if scores and group.is_main():
        write_documents(folder, {name: score.documents for name, score in scores.items()})
    return {name: score.metrics() for name, score in scores.items()}


def score_model(
    model: LanguageModel,
    config: Config,
    corpus: Corpus,
    name: str,
    device: torch.device,
    sink: Sink,
    shards: Any = None,
) -> Score:
    """The score of a model on a split, windows moving by evaluate.stride (null: half the model's length)."""
    split = corpus.splits[name]
    return score_split(
        model,
        split,
        stride=config.evaluate.stride or max(1, model.seq_len // 2),
        windows=config.evaluate.windows,
        batch_size=config.evaluate.batch_size,
        document_bos=corpus.document_bos,
        separator=corpus.tokenizer.bos_id,
        precision=pick_precision(config.trainer.precision, device),
        progress=count_scored(sink, name, len(split.tokens) - 1),
        shards=shards,
    )


def score_task(
    model: LanguageModel, config: Config, task_set: TaskSet, name: str, device: torch.device, sink: Sink
) -> TaskScore:
    """The score of a model on a task's held-out sequences, the first evaluate.windows of them (null: all)."""
    sequences = task_set.held_out(name).first(config.evaluate.windows)
    return score_sequences(
        model,
        sequences,
        chance=task_set.task.chance,
        batch_size=config.evaluate.batch_size,
        precision=pick_precision(config.trainer.precision, device),
        progress=count_scored(sink, name, sequences.tokens.size),
    )


def count_scored(sink: Sink, phase: str, total: int) -> Callable[[int], None]:
    """A function that adds up the scored tokens of a split and reports their number to the sink."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        sink(phase, done, total)

    return add


# With a decode state that is carried along: every token once, with its whole history before it. Tokens are read in
# chunks of seq_len, and the state goes on from one to the next; windows give at most seq_len − 1 tokens. In a stream
# the history is the whole split before a token; where documents are packed it begins at the document's separator.

_REMEDY = "give a smaller evaluate.batch_size, or score windows (evaluate.carry=false)"


@torch.no_grad()
def score_carried(
    model: LanguageModel,
    split: Split,
    *,
    batch_size: int,
    document_bos: int | None = None,
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> Score:
    """Score a whole split; document_bos: sequences begin at that token (packing), batch_size of them at once.

    Without it the split is one sequence, and batch_size does nothing. Memory is that of the logits of a chunk, and of
    the decode states of the longest documents (of the split). Raises UserError where those do not fit.
    """
    device = model.embedding.weight.device
    tokens = np.asarray(split.tokens)
    sequences = _sequences(tokens, document_bos)
    check_decode_memory(model, [[end - begin for begin, end in sequences[:batch_size]]], _REMEDY)
    nats, scored = torch.zeros((), dtype=torch.float64, device=device), 0
    with evaluation_mode(model), explaining_memory(_REMEDY):
        for i in range(0, len(sequences), batch_size):
            for losses in _losses(model, tokens, sequences[i : i + batch_size], precision):
                nats += losses.sum(dtype=torch.float64)
                scored += losses.numel()
                if progress is not None:
                    progress(losses.numel())
    return Score(float(nats), scored, split.n_words, split.n_bytes, None)


def _sequences(tokens: np.ndarray, document_bos: int | None) -> list[tuple[int, int]]:
    """[begin, end) of the sequences of inputs, the longest first, so that those of a batch are about as long."""
    last = len(tokens) - 1  # nothing follows the last token
    if document_bos is None:
        return [(0, last)]
    bounds = document_boundaries(tokens[None, :last], document_bos).tolist()
    return sorted(itertools.pairwise(bounds), key=lambda pair: pair[0] - pair[1])


def _losses(
    model: LanguageModel, tokens: np.ndarray, sequences: Sequence[tuple[int, int]], precision: str
) -> Iterator[Tensor]:
    """−ln p of every token that follows one of the sequences', chunk by chunk, [n] each."""
    device = model.embedding.weight.device
    lengths = [end - begin for begin, end in sequences]
    state = model.init_state(len(lengths), capacity=lengths[0])
    going = len(lengths)
    for done in range(0, lengths[0], model.seq_len):
        left = sum(length > done for length in lengths)
        if left < going:
            going, state = left, select_sequences(state, torch.arange(left, device=device))
        x, y, inside = (
            part.to(device)
            for part in _chunk(tokens, sequences[:going], done, min(model.seq_len, lengths[0] - done))
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits, state = model.extend(x, state, every=True)
        yield F.cross_entropy(logits[inside].float(), y[inside], reduction="none")


def _chunk(
    tokens: np.ndarray, sequences: Sequence[tuple[int, int]], done: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets [B, length] from `done` tokens into the sequences on, and which are inside their sequence.

    A chunk is filled up with the tokens after a sequence's end: no token attends to a later one, and no chunk of that
    sequence follows.
    """
    begin, end = (np.array(edge)[:, None] for edge in zip(*sequences, strict=True))
    index = begin + done + np.arange(length)
    x, y = (tokens.take(index + ahead, mode="clip").astype(np.int64) for ahead in (0, 1))
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(index < end)

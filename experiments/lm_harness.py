"""A trained model for EleutherAI's lm-evaluation-harness: log-likelihoods of continuations and texts, generation.

    from lm_eval import simple_evaluate
    simple_evaluate(HarnessModel(load_run("results/NAME/RUN", device)), tasks=["arc_easy"])

Every text begins with the tokenizer's separator, as documents do in training. What a model has not been trained to see
is cut from the left, or with `carry` read by its decode state. Continuations of one context, such as the choices of a
question, share its state: it is read once, and repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lm_eval.api.model import TemplateLM
from torch import Tensor

from experiments.configuration.schema import GenerateConfig
from experiments.data import eval_windows
from experiments.generation import Speed, continue_prompts
from experiments.runs import LoadedRun
from experiments.scoring.text import score_windows
from experiments.system.processes import Sink, discard
from zoo.errors import UserError
from zoo.modules.caches import select_sequences
from zoo.probes import evaluation_mode

MAX_NEW_TOKENS = 256
"""Tokens to generate where a task does not say how many."""


@dataclasses.dataclass(frozen=True)
class _Asked:
    """Tokens whose log-likelihood after a context is asked for; place: of the request."""

    place: int
    context: tuple[int, ...]
    tokens: tuple[int, ...]


class HarnessModel(TemplateLM):
    """A run's model and tokenizer behind the harness's interface.

    batch_size: contexts, continuations or prompts at once. stride: tokens by which the window of rolling
    log-likelihoods moves (None: half the trained length); the sum is then that of job=evaluate. carry: read contexts
    longer than the trained length whole. reuse: read a context once for all its continuations. sink: is told the
    finished and the whole number of requests.
    tokens_read: tokens that the model has read so far.
    """

    def __init__(
        self,
        loaded: LoadedRun,
        *,
        batch_size: int = 16,
        stride: int | None = None,
        carry: bool = False,
        reuse: bool = True,
        precision: str = "fp32",
        sink: Sink = discard,
    ) -> None:
        super().__init__()
        self.loaded, self.model, self.batch_size = loaded, loaded.model, batch_size
        self.stride = stride or max(1, loaded.model.seq_len // 2)
        if self.stride > loaded.model.seq_len:
            raise UserError(
                f"evaluate.stride={stride} is above the trained length, {loaded.model.seq_len}; tokens between windows "
                "would never be scored"
            )
        self.carry, self.reuse, self.precision, self.sink = carry, reuse, precision, sink
        self._device = loaded.model.embedding.weight.device
        self.tokens_read = 0

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's separator."""
        return self.loaded.tokenizer.bos_id

    @property
    def max_length(self) -> int:
        """The trained length."""
        return self.model.seq_len

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, by which the harness tells cached requests apart."""
        return self.loaded.tokenizer.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text, after the separator unless `add_special_tokens` is False."""
        begin = [] if add_special_tokens is False else [self.eot_token_id]
        return [*begin, *self.loaded.tokenizer.encode(string)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Σ ln p of all tokens of each text, by windows of the trained length."""
        totals = []
        for done, request in enumerate(requests):
            (text,) = request.args
            tokens = np.asarray(self.tok_encode(text))
            nats, count = (0.0, 0) if len(tokens) < 2 else self._rolling(tokens)
            self.tokens_read += count
            totals.append(-nats)
            self.sink("rolling", done + 1, len(requests))
        return totals

    def _rolling(self, tokens: np.ndarray) -> tuple[float, int]:
        split = _Tokens(tokens)
        windows = eval_windows(split, self.model.seq_len, self.stride)
        return score_windows(self.model, windows, batch_size=self.batch_size, precision=self.precision)

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Σ ln p of each continuation after its context, and whether every token of it is the most likely one."""
        asked = [self._fit(place, *request[1:]) for place, request in enumerate(requests)]
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(asked)
        done = sum(not one.tokens for one in asked)
        with evaluation_mode(self.model), self._autocast():
            for batch in self._batches([one for one in asked if one.tokens]):
                for place, answer in self._answers(batch):
                    answers[place] = answer
                    done += 1
                self.sink("choices", done, len(asked))
        return answers

    def _fit(self, place: int, context: Sequence[int], tokens: Sequence[int]) -> _Asked:
        """What the model reads: a context that is too long loses its beginning.

        Raises UserError for a continuation that is longer than the trained length itself.
        """
        room = self.model.seq_len - (len(tokens) - 1)
        if not self.carry and room < 1:
            raise UserError(
                f"a continuation has {len(tokens):,} tokens and the model was trained on {self.model.seq_len:,}; give "
                "evaluate.carry=true, which reads texts of any length"
            )
        return _Asked(place, tuple(context if self.carry else context[-room:]), tuple(tokens))

    def _batches(self, asked: list[_Asked]) -> Iterator[list[list[_Asked]]]:
        """Contexts of one length, batch_size at once, each with all that is asked of it; the longest first."""
        by_context: dict[Any, list[_Asked]] = {}
        for one in asked:
            by_context.setdefault(one.context if self.reuse else (one.context, one.place), []).append(one)
        groups = sorted(by_context.values(), key=lambda group: -len(group[0].context))
        for _, alike in itertools.groupby(groups, key=lambda group: len(group[0].context)):
            alike = list(alike)
            for begin in range(0, len(alike), self.batch_size):
                yield alike[begin : begin + self.batch_size]

    def _answers(self, batch: list[list[_Asked]]) -> Iterator[tuple[int, tuple[float, bool]]]:
        """The place and the answer of all that is asked of a batch's contexts."""
        contexts = torch.tensor([group[0].context for group in batch], device=self._device)
        owners = [(row, one) for row, group in enumerate(batch) for one in group]
        longest = max(len(one.tokens) for _, one in owners)
        last, state = self._read(contexts, contexts.shape[1] + longest - 1)
        for begin in range(0, len(owners), self.batch_size):
            part = owners[begin : begin + self.batch_size]
            rows = torch.tensor([row for row, _ in part], device=self._device)
            tokens = _padded([one.tokens for _, one in part], self._device)
            logits = last[rows][:, None]
            if tokens.shape[1] > 1:
                more, _ = self._extend(tokens[:, :-1], select_sequences(state, rows), every=True)
                logits = torch.cat([logits, more], 1)
            logs = F.log_softmax(logits.float(), -1)
            of_tokens = logs.gather(-1, tokens[..., None])[..., 0].double().cpu()
            likeliest = (logs.argmax(-1) == tokens).cpu()
            for (_, one), values, right in zip(part, of_tokens, likeliest, strict=True):
                count = len(one.tokens)
                yield one.place, (float(values[:count].sum()), bool(right[:count].all()))

    def _read(self, contexts: Tensor, capacity: int) -> tuple[Tensor, Any]:
        """Logits [B, V] after contexts [B, T], read in chunks of the trained length, and the state then."""
        state, last = self.model.init_state(len(contexts), capacity=capacity), None
        for chunk in contexts.split(self.model.seq_len, 1):
            last, state = self._extend(chunk, state, every=False)
        return last, state

    def _extend(self, tokens: Tensor, state: Any, *, every: bool) -> tuple[Tensor, Any]:
        self.tokens_read += tokens.numel()
        return self.model.extend(tokens, state, every=every)

    def _autocast(self) -> contextlib.AbstractContextManager:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, up to the first of its stop sequences; requests of equal settings together."""
        answers, done = [""] * len(requests), 0
        settings = [_generation(request.args[1]) for request in requests]
        order = sorted(range(len(requests)), key=lambda place: repr(settings[place]))
        for _, alike in itertools.groupby(order, key=lambda place: repr(settings[place])):
            alike = list(alike)
            for begin in range(0, len(alike), self.batch_size):
                places = alike[begin : begin + self.batch_size]
                texts = [requests[place].args[0] for place in places]
                for place, text in zip(places, self._continued(texts, settings[places[0]]), strict=True):
                    answers[place] = text
                done += len(places)
                self.sink("generation", done, len(requests))
        return answers

    def _continued(self, contexts: Sequence[str], options: GenerateConfig) -> list[str]:
        room = max(1, self.model.seq_len - options.tokens)
        prompts = [self.tok_encode(context) for context in contexts]
        prompts = [torch.tensor(x if self.carry else x[-room:], device=self._device) for x in prompts]
        with evaluation_mode(self.model), self._autocast():
            made = continue_prompts(self.loaded, prompts, options, 0, Speed(), lambda _: None)
        self.tokens_read += sum(map(len, prompts)) + sum(len(each.tokens) for each in made)
        return [each.text for each in made]


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """A text of tokens, as windows are cut from."""

    tokens: np.ndarray


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """int64 [B, T] of rows of several lengths; what fills them up stands after the last token, and is not read."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def _generation(asked: dict[str, Any]) -> GenerateConfig:
    """The settings of a request of the harness. Raises UserError for one that generation does not have."""
    asked = dict(asked)
    until = asked.pop("until", [])
    limit = [asked.pop(key) for key in ("max_gen_toks", "max_new_tokens", "max_tokens") if key in asked]
    samples = asked.pop("do_sample", asked.get("temperature", 0) > 0)
    options = GenerateConfig(
        tokens=int(limit[0]) if limit else MAX_NEW_TOKENS,
        temperature=float(asked.pop("temperature", 1.0)) if samples else 0.0,
        top_k=asked.pop("top_k", None),
        top_p=asked.pop("top_p", None),
        stop=[until] if isinstance(until, str) else [text for text in until if text],
        stop_at_separator=True,
    )
    asked.pop("temperature", None)
    if asked:
        raise UserError(
            f"a task asks for the generation options {', '.join(sorted(asked))}, which are not supported; take them "
            "out of its generation_kwargs"
        )
    return options

"""Text from a trained model: prompts are read and continued, up to a stop sequence, and the speed is measured."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

import zoo
from experiments.configuration.schema import GenerateConfig
from experiments.costs.model_costs import check_decode_memory, explaining_memory
from experiments.data.sources.text import decode_text
from experiments.runs import LoadedRun
from zoo.errors import UserError
from zoo.files import read_bytes
from zoo.generate import ENDED
from zoo.tokenization import Tokenizer

# Text while it is generated: whole characters, up to a stop sequence.

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Continuation:
    """The text that a model generates after a prompt, from tokens that arrive one at a time.

    tokens: all of them so far; text: their whole characters, up to the stop sequence or separator that ended it;
    ended: whether one did.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, stop_at_separator: bool = False
    ) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._separator = tokenizer.bos_id if stop_at_separator else None
        self.tokens: list[int] = []
        self.text = ""
        self.ended = False
        # Decoding everything again for every token would take a square of the length.
        self._settled, self._unsettled = "", []

    def add(self, token: int) -> None:
        """Take the next token, of a sequence that has not ended."""
        self.tokens.append(token)
        if token == self._separator:
            self.ended = True
            return
        self._unsettled.append(token)
        decoded = self._tokenizer.decode(self._unsettled)
        # A token may end inside a character; the replacement sign at the end waits for the rest of it.
        complete = decoded.rstrip(_INCOMPLETE)
        before, self.text = len(self.text), self._settled + complete
        if complete == decoded:
            self._settled, self._unsettled = self.text, []
        self._cut(before)

    @property
    def safe_text(self) -> str:
        """The text without an end that later tokens may turn into a stop sequence: what can be shown for good."""
        if self.ended:
            return self.text
        held = (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return self.text[: len(self.text) - max(held, default=0)]

    def _cut(self, before: int) -> None:
        """End the text at the first stop sequence that reaches past its first `before` characters."""
        ends = [self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stop]
        places = [place for place in ends if place >= 0]
        if places:
            self.text, self.ended = self.text[: min(places)], True


# Continuing prompts, and the speed of prefill and decoding.

_REMEDY = "give shorter prompts, fewer generate.tokens, or a smaller generate.batch_size or generate.chunk"


@dataclasses.dataclass
class Speed:
    """Tokens and seconds of prefill and of decoding, over all batches.

    prompt_s: seconds until the first tokens of a batch are there; steps, decoded: steps of decoding after those, and
    the tokens that they give.
    """

    batches: int = 0
    prompt_tokens: int = 0
    prompt_s: float = 0.0
    steps: int = 0
    decoded: int = 0
    decode_s: float = 0.0

    def clock(self, sampled: Iterator[Tensor], prompt_tokens: int) -> Iterator[list[int]]:
        """The tokens of every step as numbers, with their times taken; what the consumer does is not timed."""
        for step in itertools.count():
            began = time.perf_counter()
            tokens = next(sampled, None)
            if tokens is None:
                return
            numbers = tokens.tolist()  # waits for a GPU
            seconds = time.perf_counter() - began
            if step == 0:
                self.batches += 1
                self.prompt_tokens += prompt_tokens
                self.prompt_s += seconds
            else:
                self.steps += 1
                self.decoded += sum(number != ENDED for number in numbers)
                self.decode_s += seconds
            yield numbers

    def describe(self) -> str:
        """The time to the first token and the prompt's speed, then the time and the speed of decoding."""
        first = f"first token after {self.prompt_s / self.batches:.3g} s"
        line = f"{first} (prompt: {self.prompt_tokens / self.prompt_s:,.0f} tokens/s)"
        if not self.steps:
            return line
        step = f"{1000 * self.decode_s / self.steps:.2f} ms a {'token' if self.steps == self.decoded else 'step'}"
        return f"{line}, then {step} ({self.decoded / self.decode_s:,.1f} tokens/s)"


def encode_prompts(loaded: LoadedRun, texts: Sequence[str], options: GenerateConfig) -> list[list[Tensor]]:
    """The prompts in batches of options.batch_size, each [T] at the beginning of a document.

    Raises UserError where the decode states of a batch do not fit into memory.
    """
    tokenizer, device = loaded.tokenizer, loaded.model.embedding.weight.device
    prompts = [torch.tensor([tokenizer.bos_id, *tokenizer.encode(text)], device=device) for text in texts]
    batches = [
        prompts[begin : begin + options.batch_size] for begin in range(0, len(prompts), options.batch_size)
    ]
    lengths = ([len(prompt) + options.tokens for prompt in batch] for batch in batches)
    check_decode_memory(loaded.model, lengths, _REMEDY)
    return batches


def continue_prompts(
    loaded: LoadedRun,
    prompts: Sequence[Tensor],
    options: GenerateConfig,
    seed: int,
    speed: Speed,
    show: Callable[[list[Continuation]], None],
) -> list[Continuation]:
    """Continue prompts [T] side by side; text b is sampled with seed + b.

    show is called before the first token and after every one. Raises UserError for options out of range, and where
    memory does not suffice.
    """
    made = [
        Continuation(loaded.tokenizer, options.stop, stop_at_separator=options.stop_at_separator)
        for _ in prompts
    ]
    sampled = zoo.generate(
        loaded.model,
        prompts,
        options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=seed,
        stop=lambda b, _: made[b].ended,
        chunk=options.chunk,
    )
    show(made)
    with explaining_memory(_REMEDY):
        for numbers in speed.clock(sampled, sum(map(len, prompts))):
            for continuation, token in zip(made, numbers, strict=True):
                if token != ENDED:
                    continuation.add(token)
            show(made)
    return made


# The prompts of job=generate: given as keys, or read from a file.

STANDARD_INPUT = "-"


def read_prompts(config: GenerateConfig) -> list[str]:
    """The texts to continue: of generate.file, generate.prompts or generate.prompt.

    An empty text that is given as a key, or in a .jsonl file, stands for the beginning of a document. Raises UserError
    where two of the keys are given, a prompt is no text, or the file is missing, empty, no text, or has a line without
    a prompt.
    """
    given = {
        "generate.file": config.file,
        "generate.prompts": config.prompts,
        "generate.prompt": config.prompt if config.prompt != GenerateConfig.prompt else None,
    }
    if config.file == "":
        raise UserError("generate.file is empty; leave it out, or give a file with one prompt per line")
    named = [key for key, value in given.items() if value]
    if len(named) > 1:
        raise UserError(f"{named[0]} and {named[1]} are both given; leave out one of the two")
    prompts = _read_file(config.file) if config.file else config.prompts or [config.prompt]
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the prompt {prompt!a} is not valid text: it has half of a character (an unpaired surrogate)"
            ) from error
    return prompts


def _read_file(name: str) -> list[str]:
    place = "the standard input" if name == STANDARD_INPUT else f"generate.file={name}"
    text = decode_text(_read_bytes(name, place), place, "give another file")
    if not text.strip():
        raise UserError(f"{place} is empty; give one prompt per line")
    parse = _json_prompt if Path(name).suffix == ".jsonl" else _plain_prompt
    lines = text.removesuffix("\n").split("\n")
    return [parse(line, f"{place}: line {i}") for i, line in enumerate(lines, 1)]


def _read_bytes(name: str, place: str) -> bytes:
    if name == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return read_bytes(Path(name).expanduser())
    except FileNotFoundError as error:
        raise UserError(f"{place}: no such file; give one with one prompt per line") from error
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror}") from error


def _plain_prompt(line: str, where: str) -> str:
    if not line.strip():
        raise UserError(f"{where} is empty; remove it")
    return line


def _json_prompt(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, LookupError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str):
        raise UserError(f'{where} is not of the form {{"prompt": "some text"}}')
    return prompt

"""Continuing prompts with a trained model, and the speed of prefill and decoding."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import zoo
from experiments.configuration.schema import GenerateConfig
from experiments.costs.decode_memory import check_decode_memory, explaining_memory
from experiments.generation.continuation import Continuation
from experiments.runs.load_run import LoadedRun
from zoo.generate import ENDED

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
        told = f"{first} (prompt: {self.prompt_tokens / self.prompt_s:,.0f} tokens/s)"
        if not self.steps:
            return told
        step = f"{1000 * self.decode_s / self.steps:.2f} ms a {'token' if self.steps == self.decoded else 'step'}"
        return f"{told}, then {step} ({self.decoded / self.decode_s:,.1f} tokens/s)"


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

"""Going on from prompts with a trained model, and how fast it reads and writes."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import zoo
from experiments.continuation import Continuation
from experiments.decode_memory import check_decode_memory, explaining_memory
from experiments.load_run import LoadedRun
from experiments.schema import GenerateConfig
from zoo.generate import ENDED

_REMEDY = "give shorter prompts, fewer generate.tokens, or a smaller generate.batch_size or generate.chunk"


@dataclasses.dataclass
class Speed:
    """Tokens and seconds of reading prompts and of writing, over all batches.

    read: tokens of prompts; read_s: until the first tokens were there; steps, written: steps of decoding after those,
    and the tokens that they gave; write_s: their time.
    """

    batches: int = 0
    read: int = 0
    read_s: float = 0.0
    steps: int = 0
    written: int = 0
    write_s: float = 0.0

    def clock(self, drawn: Iterator[Tensor], prompt_tokens: int) -> Iterator[list[int]]:
        """The tokens of every step as numbers, with their times taken; what the consumer does is not timed."""
        for step in itertools.count():
            began = time.perf_counter()
            tokens = next(drawn, None)
            if tokens is None:
                return
            numbers = tokens.tolist()  # waits for a GPU
            seconds = time.perf_counter() - began
            if step == 0:
                self.batches += 1
                self.read += prompt_tokens
                self.read_s += seconds
            else:
                self.steps += 1
                self.written += sum(number != ENDED for number in numbers)
                self.write_s += seconds
            yield numbers

    def describe(self) -> str:
        """The time to the first token and the prompt's speed, then the time and the speed of decoding."""
        first = f"first token after {self.read_s / self.batches:.3g} s"
        told = f"{first} (prompt: {self.read / self.read_s:,.0f} tokens/s)"
        if not self.steps:
            return told
        step = (
            f"{1000 * self.write_s / self.steps:.2f} ms a {'token' if self.steps == self.written else 'step'}"
        )
        return f"{told}, then {step} ({self.written / self.write_s:,.1f} tokens/s)"


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


def go_on(
    loaded: LoadedRun,
    prompts: Sequence[Tensor],
    options: GenerateConfig,
    seed: int,
    speed: Speed,
    show: Callable[[list[Continuation]], None],
) -> list[Continuation]:
    """Go on from prompts [T] side by side; text b draws from seed + b.

    show is called before the first token and after every one. Raises UserError for options out of range, and where
    memory does not suffice.
    """
    made = [
        Continuation(loaded.tokenizer, options.stop, stop_at_separator=options.stop_at_separator)
        for _ in prompts
    ]
    drawn = zoo.generate(
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
        for numbers in speed.clock(drawn, sum(map(len, prompts))):
            for continuation, token in zip(made, numbers, strict=True):
                if token != ENDED:
                    continuation.add(token)
            show(made)
    return made

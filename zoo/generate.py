"""Sampling text from a model: prompts are read in chunks, then tokens come one at a time through the decode state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.errors import UserError
from zoo.model import DecodeState, LanguageModel
from zoo.modules.caches import join_states, select_sequences
from zoo.probes.run import evaluation_mode

# Drawing a token from the scores of the next one.


@dataclass(frozen=True)
class Sampling:
    """The rule by which a token is drawn: temperature, and among which tokens (see zoo.generate).

    Raises UserError for a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} must be 0 (the most likely token) or above")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must be above 0 and at most 1")

    def draw(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw one token a row from logits [B, V]: int64 [B] on the device of the logits.

        Row b draws from generators[b], on the CPU: the same for every device and beside any other rows.
        Raises UserError for logits that are NaN.
        """
        if logits.isnan().any():
            raise UserError(
                "the model's logits of the next token are NaN: its weights are damaged; use another checkpoint"
            )
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(self._narrowed(logits.double().cpu()), -1)
        drawn = [torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators, strict=True)]
        return torch.cat(drawn).to(logits.device)

    def _narrowed(self, logits: Tensor) -> Tensor:
        """Logits over the temperature, −∞ where a token is not to be drawn."""
        # Largest first: a temperature near 0 would otherwise divide to infinity.
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k, -1).values[:, -1:], -torch.inf)
        return logits if self.top_p is None else _nucleus(logits, self.top_p)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities add up to top_p."""
    ordered, index = logits.sort(-1, descending=True)
    before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
    kept = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, kept)


# Generating.

CHUNK = 2048
"""Tokens of a prompt that are read at once: memory beside the state is that of so many tokens."""

ENDED = -1
"""In the place of a token: the sequence has met a stop token before."""

Prompts = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]
Stop = Tensor | Collection[int] | Callable[[int, int], bool]


def generate(
    model: LanguageModel,
    prompt: Prompts,
    n_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    chunk: int = CHUNK,
) -> Iterator[Tensor]:
    """An iterator over at most n_tokens sampled tokens of every prompt, int64 [B] each.

    prompt: integers [B, T], or B tensors or lists [T_b] of any lengths of at least 1; temperature: 0 takes the most
    likely token; top_k: sample among the k most likely; top_p: among the fewest tokens whose probabilities add up to at
    least p; stop: tokens that end a sequence, of which they are the last: it is computed no further, its later tokens
    are −1 (ENDED), and where all sequences have ended so does the iterator. Or stop(b, token), whether sequence b ends
    with this token; it is asked when the next tokens are wanted. chunk: tokens of a prompt that are read at once.

    Sequence b draws from a generator of its own, seeded seed + b: its tokens depend on no other prompt and not on
    torch's global generator. Raises UserError for values out of range, at the call and not at the first token, and at
    a token for which the model has no numbers.
    """
    prompts = _as_prompts(model, prompt)
    _check_chunk(chunk)
    if n_tokens < 0:
        raise UserError(f"n_tokens={n_tokens} must be 0 or above")
    sampling = Sampling(temperature, top_k, top_p)
    generators = [torch.Generator().manual_seed(seed + b) for b in range(len(prompts))]
    return _generate(model, prompts, n_tokens, sampling, generators, _stop_rule(stop), chunk)


@torch.no_grad()
def prefill(
    model: LanguageModel, prompts: Prompts, *, room: int = 0, chunk: int = CHUNK
) -> tuple[Tensor, DecodeState]:
    """Read prompts, integers [T_b], into a new decode state: (logits after the last token of each [B, V], the state).

    room: tokens to make room for beside the prompt's own. Prompts of one length are read side by side. The model is in
    evaluation mode meanwhile. Raises UserError for prompts and chunks that `generate` refuses.
    """
    _check_chunk(chunk)
    with evaluation_mode(model):
        return _prefill(model, _as_prompts(model, prompts), room, chunk)


def _prefill(
    model: LanguageModel, prompts: list[Tensor], room: int, chunk: int
) -> tuple[Tensor, DecodeState]:
    groups: dict[int, list[int]] = {}
    for b, prompt in enumerate(prompts):
        groups.setdefault(len(prompt), []).append(b)
    logits, states = [], []
    for length, members in groups.items():
        state = model.init_state(len(members), capacity=length + room)
        for part in torch.stack([prompts[b] for b in members]).split(chunk, 1):
            last, state = model.extend(part, state)
        logits.append(last)
        states.append(state)
    order = torch.tensor([b for members in groups.values() for b in members]).argsort()
    if len(states) == 1:
        return logits[0], states[0]
    return torch.cat(logits)[order.to(logits[0].device)], select_sequences(join_states(states), order)


def _generate(
    model: LanguageModel,
    prompts: list[Tensor],
    n_tokens: int,
    sampling: Sampling,
    generators: list[torch.Generator],
    ends: Callable[[int, int], bool] | None,
    chunk: int,
) -> Iterator[Tensor]:
    training = model.training
    model.eval()
    try:
        if n_tokens:
            logits, state = prefill(model, prompts, room=n_tokens, chunk=chunk)
        going = list(range(len(prompts)))
        for i in range(n_tokens):
            drawn = sampling.draw(logits, [generators[b] for b in going])
            yield _spread(drawn, going, len(prompts))
            stays = _unfinished(drawn, going, ends)
            if i + 1 == n_tokens or not stays:
                return
            if len(stays) < len(going):
                going = [going[n] for n in stays]
                index = torch.tensor(stays, device=drawn.device)
                drawn, state = drawn[index], select_sequences(state, index)
            logits, state = model.step(drawn, state)
    finally:
        model.train(training)


def _stop_rule(stop: Stop) -> Callable[[int, int], bool] | None:
    """Return the rule that tells whether a token ends a sequence; None where none does."""
    if callable(stop):
        return stop
    try:
        tokens = set(stop.flatten().tolist() if isinstance(stop, Tensor) else stop)
    except TypeError as error:
        raise UserError(
            f"stop must be a collection of token ids, or a function of (sequence, token), not {stop!r}"
        ) from error
    return (lambda _, token: token in tokens) if tokens else None


def _unfinished(drawn: Tensor, going: list[int], ends: Callable[[int, int], bool] | None) -> list[int]:
    """The places in `going` of the sequences that their tokens do not end."""
    if ends is None:  # then nobody waits for the tokens of a GPU
        return list(range(len(going)))
    return [n for n, (b, token) in enumerate(zip(going, drawn.tolist(), strict=True)) if not ends(b, token)]


def _spread(drawn: Tensor, going: list[int], batch: int) -> Tensor:
    """The tokens of all sequences [batch], those of the sequences that have ended −1."""
    if len(going) == batch:
        return drawn
    return drawn.new_full((batch,), ENDED).index_copy_(0, torch.tensor(going, device=drawn.device), drawn)


def _as_prompts(model: LanguageModel, given: Prompts) -> list[Tensor]:
    """Every prompt as int64 [T_b] on the model's device. Raises UserError for what is no prompt of this model."""
    one = isinstance(given, Tensor)
    if len(given) == 0 or (one and (given.dim() != 2 or given.numel() == 0)):
        shape = _described(given) if one else "0 prompts"
        raise UserError(f"prompts must be int64 [batch, tokens], or a list of int64 [tokens], not {shape}")
    return [_as_prompt(model, prompt) for prompt in given]


def _as_prompt(model: LanguageModel, given: Tensor | Sequence[int]) -> Tensor:
    try:
        prompt = torch.as_tensor(given, device=model.embedding.weight.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"a prompt must be int64 [tokens] with at least one token, not {given!r:.80}"
        ) from error
    integral = not (prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool)
    if prompt.dim() != 1 or prompt.numel() == 0 or not integral:
        raise UserError(f"a prompt must be int64 [tokens] with at least one token, not {_described(prompt)}")
    prompt = prompt.long()
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= model.vocab_size:
        raise UserError(
            f"prompt tokens {low} ... {high} are outside the model's vocabulary of {model.vocab_size}"
        )
    return prompt


def _described(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)}"


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise UserError(f"chunk={chunk} must be at least 1 token")

"""Contracts of reading a prompt: cut in any way it gives what single tokens give, beside whatever other prompts."""

import itertools

import torch
from support.contract_cases import LONG, build, defaults_first, every_case, tokens
from support.margins import below
from support.state_rows import state_rows

from zoo import Context
from zoo.generate import prefill
from zoo.model import LanguageModel
from zoo.modules.caches import join_states, select_sequences

RAGGED = (0, 1, 3, 4, 37, 66, LONG)
"""Chunks of one token, of two, past a chunk of 32 tokens, and a rest."""


def read(model: LanguageModel, batch: torch.Tensor, cuts, capacity: int = 0):
    """Logits [B, T, V] of tokens read in pieces, and the state after them."""
    state, logits = model.init_state(len(batch), capacity=capacity), []
    for begin, end in itertools.pairwise(cuts):
        part, state = model.extend(batch[:, begin:end], state, every=True)
        logits.append(part)
    return torch.cat(logits, 1), state


def same_state(state, wanted) -> None:
    for (name, rows), (_, others) in zip(state_rows(state), state_rows(wanted), strict=True):
        below((rows - others).abs().amax() if rows.numel() else 0.0, 1e-9, name)
        assert rows.shape == others.shape, name


@every_case
@torch.no_grad()
def test_a_prompt_read_at_once_or_in_chunks_is_forward_and_leaves_the_state_of_steps(case):
    model, batch = build(case.config()).eval(), tokens(2, LONG)
    wanted, _ = model(batch)
    _, stepped = read(model, batch, range(LONG + 1))
    for cuts, capacity in (((0, LONG), LONG), (RAGGED, 0)):
        logits, state = read(model, batch, cuts, capacity)
        below((logits - wanted).abs().max(), 1e-9, f"cuts {cuts}")
        same_state(state, stepped)


@defaults_first
@torch.no_grad()
def test_sequences_of_different_lengths_go_on_together_as_if_alone(case):
    """Joined, extended by several tokens and by one, one of them taken out, the rest extended again."""
    model, batch = build(case.config()).eval(), tokens(3, LONG)
    lengths = (33, 7, 33)
    alone = [read(model, batch[i : i + 1, :n], (0, n))[1] for i, n in enumerate(lengths)]
    state = join_states(alone)
    kept = torch.tensor([0, 1, 2])
    for count, drop in ((5, None), (1, 1), (1, None), (9, None)):
        if drop is not None:
            stay = torch.arange(len(kept)) != drop
            kept, state = kept[stay], select_sequences(state, stay.nonzero()[:, 0])
            lengths = tuple(n for n, s in zip(lengths, stay.tolist(), strict=True) if s)
        new = torch.stack([batch[i, n : n + count] for i, n in zip(kept.tolist(), lengths, strict=True)])
        logits, state = model.extend(new, state)
        lengths = tuple(n + count for n in lengths)
        for row, (i, n) in enumerate(zip(kept.tolist(), lengths, strict=True)):
            wanted, _ = model(batch[i : i + 1, :n])
            below((logits[row] - wanted[0, -1]).abs().max(), 1e-9, f"sequence {i}, {n} tokens")


@defaults_first
@torch.no_grad()
def test_sequences_of_one_length_are_joined_into_one_state(case):
    """The first of them by single tokens at the end, so that windows have moved through their storage."""
    model, batch = build(case.config()).eval(), tokens(3, 40)
    _, wanted = read(model, batch, (0, 35))
    parts = [
        read(model, batch[rows], cuts, capacity)[1]
        for rows, cuts, capacity in ((slice(1), (0, *range(31, 36)), 50), (slice(1, 3), (0, 35), 0))
    ]
    state = join_states(parts)
    same_state(state, wanted)
    same_state(select_sequences(state, torch.tensor([2, 0])), select_sequences(wanted, torch.tensor([2, 0])))
    logits, _ = model.extend(batch[:, 35:], state)
    below((logits - model(batch)[0][:, -1]).abs().max(), 1e-9, "after the join")


@defaults_first
@torch.no_grad()
def test_prompts_of_different_lengths_read_in_chunks_are_the_packed_forward(case):
    model, batch = build(case.config()).eval(), tokens(4, LONG)
    prompts = [batch[row, :length] for row, length in enumerate((LONG, 5, 38, 5))]
    ends = torch.tensor([0, *(len(prompt) for prompt in prompts)]).cumsum(0)
    packed = torch.cat(prompts)[None]
    wanted, _ = model(packed, Context.of(packed, cu_seqlens=ends.int()))
    logits, _ = prefill(model, prompts, chunk=33)
    below((logits - wanted[0, ends[1:] - 1]).abs().max(), 1e-9)

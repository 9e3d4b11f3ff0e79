"""Contracts over time: the future changes nothing, decoding is the forward pass, memory ends at no fixed place."""

import dataclasses

import pytest
import torch
from support.contract_cases import (
    LONG,
    SEQ_LEN,
    VOCAB,
    WIDTH,
    Case,
    build,
    defaults_first,
    every_case,
    keys,
    mixers_defaults_first,
    tokens,
)
from support.margins import below
from torch import Tensor

import kernels
from zoo import Context
from zoo.interfaces import Mixer

FAR, CHANGED = 1040, (97, 200, 513, 1039)
"""Tokens of a sequence longer than a verdict scores, and where its future is changed."""


@defaults_first
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@torch.no_grad()
def test_the_future_changes_nothing(case, training):
    model = build(case.config()).train(training)
    if not (training or case.variant):
        assert_far_future_is_hidden(model)
    before = tokens(2, LONG)
    ctx = Context.of(before, noise_keys=keys(2))
    logits, _ = model(before, ctx)
    for position in (1, 7, 33, 64, LONG - 1):
        after = before.clone()
        after[:, position:] = (after[:, position:] + 1) % VOCAB
        changed, _ = model(after, ctx)
        torch.testing.assert_close(changed[:, :position], logits[:, :position], rtol=0, atol=1e-10)
        assert not torch.allclose(changed[:, position], logits[:, position])


def assert_far_future_is_hidden(model) -> None:
    """A block may behave at first and look ahead later: one that did from token 96 on had passed for the best."""
    rows = tokens(1, FAR).repeat(len(CHANGED) + 1, 1)
    for row, position in zip(rows, CHANGED, strict=False):
        row[position:] = (row[position:] + 1) % VOCAB
    logits, _ = model(rows, Context.of(rows, noise_keys=keys(1).expand(len(rows))))
    for found, position in zip(logits, CHANGED, strict=False):
        torch.testing.assert_close(found[:position], logits[-1, :position], rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_look_ahead_that_begins_late_would_be_noticed(monkeypatch):
    model = build(Case("mixer", "attention").config(depth=1)).eval()
    assert_far_future_is_hidden(model)
    mixer = model.layers[0].mixer
    forward = mixer.forward

    def peeking(x, ctx):
        y, aux = forward(x, ctx)
        y[:, 600:-1] += x[:, 601:]
        return y, aux

    monkeypatch.setattr(mixer, "forward", peeking)
    with pytest.raises(AssertionError):
        assert_far_future_is_hidden(model)


@every_case
@pytest.mark.parametrize(
    "capacity", [pytest.param(0, marks=pytest.mark.long), 5, pytest.param(LONG, marks=pytest.mark.long)]
)
@torch.no_grad()
def test_step_repeated_is_forward(case, capacity):
    """Past the configured length too, past the room that was made for the state, and past the end of a chunk."""
    assert_steps_are_forward(case, capacity)


def assert_steps_are_forward(case: Case, capacity: int) -> None:
    model = build(case.config()).eval()
    batch = tokens(2, LONG)
    assert batch.shape[1] > SEQ_LEN
    logits, _ = model(batch)
    state = model.init_state(2, capacity=capacity)
    for t in range(batch.shape[1]):
        step, state = model.step(batch[:, t], state)
        below((step - logits[:, t]).abs().max(), 1e-9, f"token {t}")


@every_case
@torch.no_grad()
def test_a_single_token_is_a_sequence(case):
    model = build(case.config()).eval()
    one = tokens(3, 1)
    step, _ = model.step(one[:, 0], model.init_state(3))
    torch.testing.assert_close(step, model(one)[0][:, 0], rtol=0, atol=1e-9)


PLACES, AFTER, DRAWS = 132, 32, 40
"""Tokens that are changed, so that a cut at every 16th to 128th shows; tokens after the last of them; draws at most."""
TOGETHER = 8
"""So many tokens in a row whose influence ends at one token are a cut; the mixers here have at most 7, in one draw."""
ROUNDING, FAINT = 1e-9, 1e-2
"""Influence that counts, over the largest output, and over the largest influence of the same token."""


@mixers_defaults_first
def test_memory_does_not_end_at_fixed_places(case):
    """Where memory is cut in forward and in decoding alike, they agree, and every other contract is kept."""
    assert_memory_goes_on(build(case.config(depth=1)).eval().layers[0].mixer)


def assert_memory_goes_on(mixer: Mixer, draws: int = DRAWS) -> None:
    """Every token's reach, the largest over draws, is at least half the median, or half the way to the end; and no
    TOGETHER tokens in a row reach as far as one and the same token, as they do before a cut.

    A short convolution carries the last tokens before a cut over it, so that reaches alone do not show it. Mixers that
    select, route or forget by what they read need several draws, and only where one fell short.
    """
    places = torch.arange(PLACES)
    reached = reach(mixer, places, 0)
    for seed in range(1, draws + 1):
        usual = reached[0].quantile(0.5)
        short = reached[0] < usual.clamp_max(PLACES + AFTER - 1 - places) / 2
        cut = torch.stack([end_together(places + row) for row in reached])
        again = places[short | cut.any(0)]
        if len(again) == 0 or seed == draws:
            break
        reached[:, again] = reached[:, again].maximum(reach(mixer, again, seed))
    last = {*places[short].tolist()} - {*(places[short] - 1).tolist()}  # of runs of such tokens
    last |= {*(places + reached)[cut].long().tolist()}
    assert not last, f"a memory of {usual:.0f} tokens ends after token {', '.join(map(str, sorted(last)))}"


def end_together(ends: Tensor) -> Tensor:
    """Whether each token is one of TOGETHER or more in a row whose influence ends at the same one before PLACES."""
    _, run, sizes = ends.unique_consecutive(return_inverse=True, return_counts=True)
    return (sizes[run] >= TOGETHER) & (ends < PLACES)


@torch.no_grad()
def reach(mixer: Mixer, places: Tensor, seed: int) -> Tensor:
    """How many tokens after each place outputs change with its token: by more than ROUNDING, and than FAINT.

    In fp64; [2, places].
    """
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(PLACES + AFTER, WIDTH, generator=generator, dtype=torch.float64)
    rows = before.repeat(len(places) + 1, 1, 1)  # the last one is left as it is
    rows[range(len(places)), places] = torch.randn(
        len(places), WIDTH, generator=generator, dtype=torch.float64
    )
    y, _ = mixer(rows, Context.of(rows[..., 0]))
    change = (y[:-1] - y[-1]).abs().amax(-1)
    changed = torch.stack([change > ROUNDING * y.abs().max(), change > FAINT * change.amax(1, keepdim=True)])
    last = (changed * torch.arange(PLACES + AFTER)).amax(2)
    return (last - places).clamp_min(0).double()


OPERATIONS = {"kda": "delta_rule", "mesanet": "mesa", "mom": "memory_mixture"}


def forgetful(operation, every: int, left: float = 0.0):
    """The operation with sequences cut at every so many tokens: what was before counts `left` times as much there."""

    def cut(*inputs, cu_seqlens=None, **options):
        length = inputs[0].shape[1]
        if length <= every:  # a step, or a sequence of one piece
            return operation(*inputs, cu_seqlens=cu_seqlens, **options)
        pieces = [slice(begin, begin + every) for begin in range(0, length, every)]
        parts = [[x[:, piece] if x.dim() > 2 else x for x in inputs] for piece in pieces]
        alone = torch.cat([operation(*part, **options)[0] for part in parts], 1)
        return alone + left * (operation(*inputs, **options)[0] - alone) if left else alone, None

    return cut


@pytest.mark.parametrize("name", OPERATIONS)
@torch.no_grad()
def test_a_state_that_is_lost_between_chunks_would_be_noticed(name, monkeypatch):
    """Sequences cut at token 64, where a chunk begins."""
    monkeypatch.setattr(kernels, OPERATIONS[name], forgetful(getattr(kernels, OPERATIONS[name]), 64))
    with pytest.raises(AssertionError):
        assert_steps_are_forward(Case("mixer", name), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "every", "left"),
    [
        pytest.param("kda", {}, 16, 0.0, id="kda 16", marks=pytest.mark.long),
        pytest.param("kda", {}, 32, 0.0, id="kda 32", marks=pytest.mark.long),
        pytest.param("kda", {}, 64, 0.0, id="kda 64"),
        pytest.param("kda", {}, 128, 0.0, id="kda 128", marks=pytest.mark.long),
        pytest.param("mesanet", {}, 64, 0.0, id="mesanet 64", marks=pytest.mark.long),
        pytest.param("mom", {}, 64, 0.0, id="mom 64", marks=pytest.mark.long),
        pytest.param("kda", {"kernel_size": 8}, 16, 0.0, id="behind a convolution", marks=pytest.mark.long),
        pytest.param("kda", {"kernel_size": 16}, 16, 0.0, id="behind one as long", marks=pytest.mark.long),
        pytest.param("kda", {"kernel_size": 8}, 32, 0.001, id="nearly all"),
    ],
)
def test_a_memory_that_ends_at_fixed_places_would_be_noticed(name, options, every, left, monkeypatch):
    """In as few draws as the mixer itself passes with."""
    config = Case("mixer", name).config(depth=1)
    setattr(config.mixers, name, dataclasses.replace(getattr(config.mixers, name), **options))
    mixer = build(config).eval().layers[0].mixer
    assert_memory_goes_on(mixer, draws=4)
    monkeypatch.setattr(kernels, OPERATIONS[name], forgetful(getattr(kernels, OPERATIONS[name]), every, left))
    with pytest.raises(AssertionError, match=r"a memory of \d+ tokens ends after token"):
        assert_memory_goes_on(mixer, draws=4)

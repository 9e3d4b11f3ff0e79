"""Contracts over time: the future changes nothing, and decoding token by token is the forward pass."""

import pytest
import torch
from support.contract_cases import LONG, SEQ_LEN, VOCAB, Case, build, every_case, keys, tokens
from support.margins import below

import kernels
from zoo import Context


@every_case
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@torch.no_grad()
def test_the_future_changes_nothing(case, training):
    model = build(case.config()).train(training)
    before = tokens(2, LONG)
    ctx = Context.of(before, noise_keys=keys(2))
    logits, _ = model(before, ctx)
    for position in (1, 7, 33, 64, LONG - 1):
        after = before.clone()
        after[:, position:] = (after[:, position:] + 1) % VOCAB
        changed, _ = model(after, ctx)
        torch.testing.assert_close(changed[:, :position], logits[:, :position], rtol=0, atol=1e-10)
        assert not torch.allclose(changed[:, position], logits[:, position])


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


OPERATIONS = {"kda": "delta_rule", "mesanet": "mesa", "mom": "memory_mixture"}


@pytest.mark.parametrize("name", OPERATIONS)
@torch.no_grad()
def test_a_state_that_is_lost_between_chunks_would_be_noticed(name, monkeypatch):
    """Sequences cut at token 64, as if the state were multiplied by 0 where a chunk begins."""
    operation = getattr(kernels, OPERATIONS[name])

    def forgetful(*inputs, cu_seqlens=None, **options):
        inputs = list(inputs)
        if inputs[0].shape[1] <= 64:  # a step, or a sequence of one chunk
            return operation(*inputs, cu_seqlens=cu_seqlens, **options)
        parts = [[x[:, cut] if x.dim() > 2 else x for x in inputs] for cut in (slice(64), slice(64, None))]
        return torch.cat([operation(*part, **options)[0] for part in parts], 1), None

    monkeypatch.setattr(kernels, OPERATIONS[name], forgetful)
    with pytest.raises(AssertionError):
        assert_steps_are_forward(Case("mixer", name), 5)

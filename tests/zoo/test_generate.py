"""Sampling: greedy is the argmax of the forward pass, draws have a seed, bad values are refused."""

import pytest
import torch
from support.contract_cases import VOCAB, build, tokens

import zoo
from zoo import ModelConfig, UserError
from zoo.generate import Sampling, prefill


@pytest.fixture(scope="module")
def model():
    return build(ModelConfig(pattern="SF", depth=2, d_model=32), dtype=torch.float32).eval()


def run(model, prompt, n=12, **options) -> list[list[int]]:
    """Tokens by row."""
    return torch.stack(list(zoo.generate(model, prompt, n, **options)), 1).tolist()


@pytest.mark.parametrize("length", [1, 9])
@torch.no_grad()
def test_greedy_is_the_argmax_of_forward(model, length):
    prompt = tokens(2, length)
    got = run(model, prompt, temperature=0)
    so_far = prompt
    for _ in range(12):
        following = model(so_far)[0][:, -1].argmax(-1, keepdim=True)
        so_far = torch.cat([so_far, following], 1)
    assert got == so_far[:, length:].tolist()


def test_a_seed_decides_the_draws(model):
    prompt = tokens(2, 5)
    one = run(model, prompt, seed=1)
    torch.manual_seed(99)
    assert run(model, prompt, seed=1) == one
    assert run(model, prompt, seed=2) != one
    assert run(model, prompt, n=5, seed=1) == [row[:5] for row in one]


def draws(logits, **options) -> torch.Tensor:
    """How often each token is drawn in 4,000 draws."""
    rows = torch.tensor([logits]).expand(4000, -1)
    picked = Sampling(**options).draw(rows, 4000 * [torch.Generator().manual_seed(0)])
    return torch.bincount(picked, minlength=len(logits)) / 4000


@pytest.mark.slow
def test_draws_follow_the_probabilities():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = p.log().tolist()
    halves = torch.tensor([0.625, 0.375, 0, 0])
    for options, wanted in [
        ({}, p),
        ({"temperature": 0.5}, p**2 / (p**2).sum()),
        ({"top_k": 2}, halves),
        ({"top_p": 0.7}, halves),  # 0.5 alone is less than 0.7, so the second token is needed, and no third
        ({"top_p": 1.0}, p),
        ({"top_k": 99}, p),
    ]:
        assert (draws(logits, **options) - wanted).abs().max() < 0.03


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)])
def test_a_nucleus_stops_where_its_probabilities_reach_p(top_p, kept):
    """Quarters add up without rounding: two of them are a half, and no third is needed."""
    assert int((draws([0.0] * 4, top_p=top_p) > 0).sum()) == kept


@pytest.mark.parametrize("training", [True, False])
def test_the_model_returns_to_its_mode(model, training):
    model.train(training)
    run(model, tokens(1, 3), n=2)
    assert model.training is training
    unfinished = zoo.generate(model, tokens(1, 3), 5)
    next(unfinished)
    unfinished.close()
    assert model.training is training
    assert model.layers[0].mixer.training is training
    model.eval()


def test_prefill_reads_in_evaluation_mode_and_refuses_what_generate_refuses(model):
    model.train()
    logits, _ = prefill(model, tokens(1, 9))
    assert model.training
    torch.testing.assert_close(logits, model.eval()(tokens(1, 9))[0][:, -1])
    with pytest.raises(UserError, match="0 prompts"):
        prefill(model, [])
    with pytest.raises(UserError, match="chunk=0"):
        prefill(model, tokens(1, 3), chunk=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": -3}, "top_k=-3"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"n_tokens": -1}, "n_tokens=-1"),
        ({"prompt": torch.zeros(1, 0, dtype=torch.int64)}, "(1, 0)"),
        ({"prompt": torch.zeros(0, 4, dtype=torch.int64)}, "(0, 4)"),
        ({"prompt": torch.zeros(4, dtype=torch.int64)}, "(4,)"),
        ({"prompt": []}, "0 prompts"),
        ({"prompt": [torch.tensor([1]), torch.tensor([], dtype=torch.int64)]}, "(0,)"),
        ({"prompt": torch.zeros(1, 4, dtype=torch.bool)}, "torch.bool (4,)"),
        ({"prompt": [["a"]]}, "not ['a']"),
        ({"prompt": [3]}, "torch.int64 ()"),
        ({"stop": 5}, "stop must be a collection of token ids, or a function of (sequence, token), not 5"),
        ({"prompt": [torch.tensor([1]), torch.tensor([VOCAB])]}, f"vocabulary of {VOCAB}"),
        ({"chunk": 0}, "chunk=0"),
        ({"prompt": torch.zeros(1, 4)}, "float32"),
        ({"prompt": torch.tensor([[1, VOCAB]])}, f"vocabulary of {VOCAB}"),
        ({"prompt": torch.tensor([[1, -1]])}, f"vocabulary of {VOCAB}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_are_refused_at_the_call(model, options, said):
    options = {"prompt": tokens(1, 3), "n_tokens": 4, **options}
    with pytest.raises(UserError) as caught:
        zoo.generate(model, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 4, 2048])
@pytest.mark.slow
def test_prompts_of_different_lengths_are_written_on_as_if_alone(chunk):
    model = build(ModelConfig(pattern="SFGNP", depth=5, d_model=32), dtype=torch.float64).eval()
    lengths = (9, 2, 5, 9)  # sorted by length, then put back: neither order is its own inverse
    prompts = [tokens(4, 9)[row, :length] for row, length in enumerate(lengths)]
    together = run(model, prompts, seed=3, chunk=chunk)
    assert together == [run(model, prompt[None], seed=3 + b)[0] for b, prompt in enumerate(prompts)]


def test_a_sequence_ends_with_a_stop_token_and_the_others_go_on(model):
    prompts = [tokens(3, 9)[row, :length] for row, length in enumerate((9, 4, 9))]
    free = run(model, prompts, n=20, seed=1)
    stop = {free[1][3], free[2][7]}
    ends = [next((i for i, t in enumerate(row) if t in stop), 19) for row in free]
    assert len(set(ends)) > 1
    got = run(model, prompts, n=20, seed=1, stop=stop)
    for row, wanted, end in zip(got, free, ends, strict=True):
        assert row == wanted[: end + 1] + [-1] * (len(row) - end - 1)
    assert len(got[0]) == max(ends) + 1


def test_a_function_may_say_where_a_sequence_ends_and_knows_every_token_of_it(model):
    prompts = [tokens(2, 9)[0, :length] for length in (9, 4)]
    free, seen = run(model, prompts, n=8, seed=1), [[], []]

    def stop(b: int, token: int) -> bool:
        seen[b].append(token)
        return len(seen[b]) == (3, 6)[b]

    assert run(model, prompts, n=8, seed=1, stop=stop) == [free[0][:3] + [-1] * 3, free[1][:6]]
    assert seen == [free[0][:3], free[1][:6]]


def test_ended_sequences_are_computed_no_further(model, monkeypatch):
    prompts, batches = tokens(3, 4), []
    free = run(model, prompts, n=12, temperature=0)
    step = type(model).step
    monkeypatch.setattr(
        type(model), "step", lambda self, drawn, state: batches.append(len(drawn)) or step(self, drawn, state)
    )
    stop = {free[0][2]}
    got = run(model, prompts, n=12, temperature=0, stop=stop)
    going = [sum(token != -1 and token not in stop for token in column) for column in zip(*got, strict=True)]
    assert batches == [n for n in going if n][: len(batches)]
    assert batches[-1] < 3


def test_a_prompt_is_read_in_few_passes_and_only_its_last_logits_are_made(model, monkeypatch):
    seen, logits = [], []
    extend, head = type(model).extend, type(model)._logits
    monkeypatch.setattr(
        type(model),
        "extend",
        lambda self, t, *a, **k: seen.append(tuple(t.shape)) or extend(self, t, *a, **k),
    )
    monkeypatch.setattr(
        type(model), "_logits", lambda self, x: logits.append(tuple(x.shape[:2])) or head(self, x)
    )
    run(model, tokens(2, 11), n=3, chunk=5)
    assert seen == [(2, 5), (2, 5), (2, 1), (2, 1), (2, 1)]
    assert set(logits) == {(2, 1)}


@pytest.mark.gpu
def test_a_gpu_draws_the_same_tokens(model):
    """The draw is on the CPU; the token goes back to where the model is."""
    prompt = tokens(2, 5)
    wanted = run(model.double(), prompt, seed=1)
    try:
        got = list(zoo.generate(model.cuda(), prompt.cuda(), 12, seed=1))
    finally:
        model.cpu().float()
    assert all(token.is_cuda for token in got)
    assert torch.stack(got, 1).tolist() == wanted

"""What a run's seed decides, and nothing else does: weights and batches, also in the first run on a machine."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.program import Lab, assert_same_run, steady_rows

from experiments import data
from zoo import LanguageModel, load

# A learning rate this small leaves the weights where they start, to seven digits.
STILL = [
    *("model=transformer", "trainer.max_steps=3", "trainer.log_every=1", "optim.lr=1e-12", "optim.lr_min=0"),
]


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.slow
def test_weights_and_batches_come_from_the_seed_of_the_run(lab: Lab, seed: int):
    words = [*STILL, f"seed={seed}"]
    assert lab.here(*words).status == 0
    (config,) = lab.compose(*words)
    corpus = data.prepare(config.data)
    start = LanguageModel(config.model, vocab_size=corpus.tokenizer.vocab_size, seq_len=32, seed=seed)
    for mine, trained in zip(start.parameters(), load(lab.run_folder()).parameters(), strict=True):
        torch.testing.assert_close(trained, mine, rtol=0, atol=1e-9)
    batches = data.Batches(corpus.splits["train"], 32, 4, seed)
    rows = [row for row in steady_rows(lab.run_folder()) if row["split"] == "train"]
    for i, row in enumerate(rows):
        batch = batches.batch(i)
        with torch.no_grad():
            logits, _ = start(batch["tokens"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        assert float(row["loss"]) == pytest.approx(float(loss), rel=1e-5), i


@pytest.mark.slow
def test_losses_of_other_weights_and_other_batches_are_told_apart(lab: Lab):
    """What the test above compares to five digits differs in the third."""
    (config,) = lab.compose(*STILL)
    corpus = data.prepare(config.data)
    vocabulary, losses = corpus.tokenizer.vocab_size, []
    for weights, order in ((0, 0), (5, 0), (0, 5), (5, 5)):
        model = LanguageModel(config.model, vocab_size=vocabulary, seq_len=32, seed=weights)
        batch = data.Batches(corpus.splits["train"], 32, 4, order).batch(0)
        with torch.no_grad():
            logits, _ = model(batch["tokens"])
        losses.append(float(F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())))
    losses.sort()
    assert min(b - a for a, b in itertools.pairwise(losses)) > 1e-4 * losses[0]


# Rows of several vectors and heads, which the compiler sums in an order of its own.
WIDE = ["model.d_model=96", "data.seq_len=64", "trainer.max_steps=6", "trainer.val_every=3"]


@pytest.mark.parametrize("model", ["orthgsa", "nsa"])
@pytest.mark.long
def test_a_run_that_compiles_its_kernels_is_the_run_that_finds_them(model, tmp_path, small_text, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "machine code"))
    folders: list[Path] = []
    for name in ("first", "second"):
        lab = Lab(tmp_path / name, small_text, tmp_path / "cache")
        outcome = lab.run(f"model={model}", *WIDE)
        assert outcome.status == 0, outcome.err
        folders.append(lab.run_folder())
    assert_same_run(*folders)

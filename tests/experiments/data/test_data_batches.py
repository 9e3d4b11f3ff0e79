"""Training batches: purity, order, coverage, packing, noise keys; windows to score, every token once."""

import numpy as np
import pytest
import torch

from experiments.data import Batches, Split, eval_windows
from experiments.data.batches import counter_hash

BOS = 0


def numbered(n: int) -> Split:
    """A split whose token at position p is p (and so tells where it came from)."""
    return Split(np.arange(n, dtype=np.uint32), n_words=n, n_bytes=n, n_documents=1)


def documents(n: int, every: int) -> Split:
    tokens = np.arange(1, n + 1, dtype=np.uint16)
    tokens[::every] = BOS
    return Split(tokens, n_words=n, n_bytes=n, n_documents=len(tokens[::every]))


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("pack", ["stream", "document"])
def test_a_batch_depends_on_seed_and_number_only(pack):
    first = Batches(documents(1000, 37), 16, 4, seed=3, pack=pack, bos_id=BOS)
    expected = [first.batch(i) for i in range(60)]
    second = Batches(documents(1000, 37), 16, 4, seed=3, pack=pack, bos_id=BOS)
    for i in (59, 0, 31, 15, 16, 59):  # out of order, over epoch borders
        assert same(second.batch(i), expected[i])
    other = Batches(documents(1000, 37), 16, 4, seed=4, pack=pack, bos_id=BOS)
    assert not same(other.batch(0), expected[0])


def test_shapes_types_and_shift():
    batch = Batches(numbered(1000), 16, 4, seed=0).batch(7)
    assert batch["tokens"].shape == batch["targets"].shape == (4, 16)
    assert batch["noise_keys"].shape == (4,)
    assert {value.dtype for value in batch.values()} == {torch.int64}
    assert torch.equal(batch["targets"], (batch["tokens"] + 1) % 1000)


@pytest.mark.parametrize("pack", ["stream", "document"])
def test_batch_size_and_accumulation_do_not_change_the_order(pack):
    large = Batches(documents(1000, 37), 16, 8, seed=5, pack=pack, bos_id=BOS)
    small = Batches(documents(1000, 37), 16, 2, seed=5, pack=pack, bos_id=BOS)
    for i in range(20):
        parts = [small.batch(4 * i + j) for j in range(4)]
        whole = large.batch(i)
        for key in ("tokens", "targets"):
            joined = torch.cat([part[key].reshape(-1) for part in parts])
            assert torch.equal(joined, whole[key].reshape(-1))
        assert torch.equal(torch.cat([part["noise_keys"] for part in parts]), whole["noise_keys"])


@pytest.mark.parametrize("n", [161, 1000, 1024])
def test_every_token_is_seen_once_an_epoch_up_to_the_remainder(n):
    batches = Batches(numbered(n), 16, 1, seed=1)
    width = batches.windows_per_epoch
    assert width == n // 16
    for epoch in range(3):
        seen = torch.cat([batches.batch(epoch * width + i)["tokens"][0] for i in range(width)])
        assert len(seen) == len(set(seen.tolist())) == n - n % 16
    orders = [[int(batches.batch(e * width + i)["tokens"][0, 0]) for i in range(width)] for e in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_packing_starts_a_sequence_at_rows_and_separators():
    batches = Batches(documents(1000, 37), 16, 4, seed=2, pack="document", bos_id=BOS)
    for i in range(30):
        batch = batches.batch(i)
        tokens, bounds = batch["tokens"], batch["cu_seqlens"]
        assert tokens.shape == batch["targets"].shape == (1, 64)
        assert bounds.dtype == torch.int32
        assert len(batch["noise_keys"]) == len(bounds) - 1
        starts = set(bounds[:-1].tolist())
        assert starts == {0, 16, 32, 48} | set((tokens[0] == BOS).nonzero()[:, 0].tolist())
        assert bounds[-1] == 64
        assert bool((bounds.diff() > 0).all())


def test_noise_keys_are_positive_distinct_and_shared_by_both_packings():
    stream = Batches(documents(1000, 37), 16, 4, seed=2, pack="stream", bos_id=BOS)
    packed = Batches(documents(1000, 37), 16, 4, seed=2, pack="document", bos_id=BOS)
    keys = torch.cat([stream.batch(i)["noise_keys"] for i in range(500)])
    assert len(set(keys.tolist())) == 2000
    assert int(keys.min()) >= 0
    assert int(keys.max()) < 2**62
    batch = packed.batch(3)
    at_row_start = batch["cu_seqlens"][:-1] % 16 == 0
    assert torch.equal(batch["noise_keys"][at_row_start], stream.batch(3)["noise_keys"])
    assert len(set(batch["noise_keys"].tolist())) == len(batch["noise_keys"])


def test_counter_hash_is_fixed_and_has_no_dead_bits():
    # The reference stream of SplitMix64 from state 0 (its authors' C code), cut to 62 bits.
    assert int(counter_hash(0)[0]) == 0xE220A8397B1DCDAF & (2**62 - 1)
    values = counter_hash(7, np.arange(20000))
    bits = (values[:, None] >> np.arange(62)) & 1
    assert np.abs(bits.mean(0) - 0.5).max() < 0.02
    assert not np.array_equal(counter_hash(1, 2), counter_hash(2, 1))
    assert np.array_equal(counter_hash(-1), counter_hash(2**64 - 1))
    # Every bit of a seed or an epoch counts: seeds 1 and 17 are not one.
    assert len({int(counter_hash(1 ^ (1 << bit))[0]) for bit in range(64)}) == 64


def test_a_split_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="16 tokens are too few"):
        Batches(numbered(16), 16, 1, seed=0)
    assert Batches(numbered(17), 16, 2, seed=0).batch(0)["tokens"].shape == (2, 16)


@pytest.mark.parametrize("stride", [1, 3, 8, 15, 16])
@pytest.mark.parametrize("n", [2, 10, 16, 17, 18, 100, 113])
def test_every_token_is_scored_once_in_order(n, stride):
    scored = []
    for tokens, targets, first in eval_windows(numbered(n), 16, stride):
        assert len(tokens) == len(targets) == min(16, n - 1)
        assert np.array_equal(targets.numpy(), tokens.numpy() + 1)
        for position in range(first, len(targets)):
            context = position + 1
            target = int(targets[position])
            assert context >= min(16 - stride, target)
            scored.append(target)
    assert scored == list(range(1, n))


def test_bad_strides_and_empty_splits_are_refused():
    for stride in (0, 17):
        with pytest.raises(ValueError, match="stride must be between 1 and seq_len=16"):
            next(eval_windows(numbered(100), 16, stride))
    with pytest.raises(ValueError, match="nothing to score"):
        next(eval_windows(numbered(1), 16, 16))

"""sparse_step: the newest row of sparse_attention over a cache, unused places, dtypes of a cache, errors."""

import pytest
import torch
from support.kernel_cases import normal
from support.margins import below

from kernels import sparse_attention, sparse_step

BACKENDS = ["torch", "reference"]
INDICES = torch.tensor([[8, 6, 3, 0, -1], [8, 1, -1, -1, -1], [8, 7, 5, 4, 2]], dtype=torch.int32)


def given(batch: int = 3, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """q of four heads, keys and values of nine tokens with two KV heads, as views of longer storage."""
    q = normal(batch, 4, 6, seed=1).to(dtype)
    keys, values = (normal(batch, 2, 12, width, seed=seed).to(dtype) for width, seed in ((6, 2), (5, 3)))
    return [q, keys[:, :, :9], values[:, :, :9]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [slice(0, 3), slice(0, 1), slice(1, 2)], ids=["batch", "one", "few"])
def test_it_is_sparse_attention_of_the_last_token(backend, rows):
    q, keys, values = (x[rows] for x in given())
    indices = INDICES[rows]
    k, v = (x.transpose(1, 2) for x in (keys, values))
    wanted = sparse_attention(q[:, None], k, v, indices[:, None], scale=0.7)[:, 0]
    torch.testing.assert_close(sparse_step(q, keys, values, indices, scale=0.7, backend=backend), wanted)


def test_rows_that_are_not_selected_are_not_read():
    q, keys, values = given()
    wanted = sparse_step(q, keys, values, INDICES)
    for b, indices in enumerate(INDICES):
        unread = torch.ones(9, dtype=torch.bool)
        unread[indices[indices >= 0]] = False
        unread[0] = False  # what stands in unused places
        keys[b, :, unread], values[b, :, unread] = torch.nan, torch.nan
    torch.testing.assert_close(sparse_step(q, keys, values, INDICES), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_may_be_wider_than_the_query(backend):
    q, keys, values = given(dtype=torch.float32)
    wanted = sparse_step(q, keys, values, INDICES, backend="reference")
    o = sparse_step(q.bfloat16(), keys, values, INDICES, backend=backend)
    assert o.dtype == torch.bfloat16
    below((o - wanted).abs().max(), 2.0**-5, "bfloat16 has 8 bits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(3, 1, 4, 6)}, r"needs q \[B, H, K\]"),
        ({"values": torch.zeros(3, 2, 8, 5)}, "tokens or key width differ"),
        ({"q": torch.zeros(3, 3, 6)}, "divisible by the KV heads"),
        ({"indices": INDICES.float()}, "int32 or int64"),
        ({"indices": INDICES[:2]}, "B = 3"),
        ({"backend": "torhc"}, "did you mean 'torch'"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = dict(zip(("q", "keys", "values"), given(), strict=True)) | {"indices": INDICES}
    with pytest.raises(ValueError, match=message):
        sparse_step(**(arguments | change))

"""Operations and bytes of the indexer's loss."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, listed_pairs, nbytes


def work(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call with gradients: the attention's products once, the indexer's thrice.

    All are made in the forward pass; the backward scales gradients. The kernels compute the attention's
    products and the indexer's scores three times each rather than store them; repetitions are not counted. Pairs are
    those visible in a batch or, of those, as many as the lists have places for; packed sequences have fewer.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], tau [],
    indices [B, Tq, n] or None.
    """
    batch, time, heads, width = q.shape
    pairs = batch * listed_pairs(time, time, time if indices is None else indices.shape[2])
    products = heads * width + 3 * q_idx.shape[2] * q_idx.shape[3]
    learnt = nbytes(q_idx, k_idx, w_idx, bias, tau)
    wide = sum(4 * x.numel() for x in (q_idx, k_idx, w_idx, bias, tau))
    return [
        Work("indexer_kl", "forward", 2 * pairs * products, nbytes(q, k, indices) + learnt + wide),
        Work("indexer_kl", "backward", wide // 4, wide + learnt),
    ]

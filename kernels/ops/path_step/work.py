"""Operations and bytes of a token of PaTH attention over a cache."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call: the cache read once; keys and `forgotten` written once, but for the newest row.

    A key that is turned takes two products with w; a split softmax's partial sums are not counted.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None.
    """
    (batch, heads, width), tokens = q.shape, keys.shape[2]
    turned = 0 if w is None else keys.shape[1] * (tokens - 1)
    flops = batch * (4 * turned * width + 2 * heads * tokens * (width + values.shape[3]))
    written = batch * turned * width * keys.element_size()
    written += 0 if forgotten is None else batch * heads * (tokens - 1) * forgotten.element_size()
    written += batch * heads * values.shape[3] * q.element_size()
    return [Work("path_step", "forward", flops, nbytes(q, keys, values, w, beta, g, forgotten) + written)]

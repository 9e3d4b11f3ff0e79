"""The lightning indexer's selection: for each query, the keys that it attends to, by a cheap score.

    I_ts = Σ_j w_tj · σ(q_tj·k_s/√d_I + b_j)          over s ≤ t of t's sequence
    S_t  = {t} ∪ the k_t − 1 other s of highest I_ts          by option one choice for a tile of queries, blocks of keys

Here are the public function, its checks, its backends and its work for a roofline.

scores.py      the scores, the order in which they rank, and how many keys a query selects
reference.py   the definition, one query after another
torch_form.py  blocks of queries in PyTorch
triton_ops.py  the same on a GPU, with candidate buffers in place of a matrix of scores
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.lightning_topk.reference import lightning_topk_reference
from kernels.ops.lightning_topk.scores import AdaptiveK, check_indexer, continued
from kernels.ops.lightning_topk.torch_form import lightning_topk_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["AdaptiveK", "continued", "lightning_topk"]

MOST_HEADS, MOST_KEPT = 128, 8192
"""Index heads that a tile holds, and half the candidates of a query that one program prunes at a time."""


def refuses_selection(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k_max: int,
    share: int = 1,
    key_block: int = 1,
    **_options,
) -> str | None:
    """Why Triton cannot select at most k_max keys for q_idx [B, Tq, HI, DI], None if it can; the rest as below."""
    if q_idx.shape[2] > MOST_HEADS:
        return f"needs at most {MOST_HEADS} index heads, got {q_idx.shape[2]}"
    if share > 1 or key_block > 1:
        return f"selects single keys for every query, got share={share}, key_block={key_block}"
    if k_max > MOST_KEPT:
        return f"needs k_max of at most {MOST_KEPT}, got {k_max}"
    return refusal(q_idx, k_idx, w_idx, bias, widths=(q_idx.shape[-1],))


OPERATION = Operation("lightning_topk")
OPERATION.register(
    "triton",
    lazily("kernels.ops.lightning_topk.triton_ops", "lightning_topk_triton"),
    refuses=refuses_selection,
    suits=on_cuda,
)
OPERATION.register("torch", lightning_topk_torch, suits=always)
OPERATION.register("reference", lightning_topk_reference, suits=only_when_named)


def lightning_topk(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: Tensor | int | AdaptiveK,
    k_max: int | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
    share: int = 1,
    key_block: int = 1,
    backend: str = "auto",
) -> Tensor:
    """Select the keys that each query attends to, by the lightning indexer's scores.

        I_ts = Σ_j w_tj · σ(q_tj·k_s/√d_I + b_j)          over s ≤ t of t's sequence; σ by `scores`
        S_t  = {t} ∪ the k_t − 1 other s of highest I_ts,  ties to the later s,  NaN above all numbers

    q_idx       [B, Tq, HI, DI], any floating dtype
    k_idx       [B, Tk, DI], one key a token, shared by the HI index heads. Query i stands at position
                i + Tk − Tq: a shorter q aligns with the end of k
    w_idx       [B, Tq, HI], the heads' weights: with sigmoid scores ≥ 0 (after their own sigmoid), with ReLU of
                any sign
    bias        [HI]; DeepSeek-V3.2 has none, which is 0
    k           how many keys a query selects: an int, an integer tensor [B, Tq], or an AdaptiveK, which decides by
                the query's own scores; at least 1, at most k_max and as many as the query sees
    k_max       width of the result; None: k, or the most that an AdaptiveK gives
    scores      "sigmoid": σ(z) = 1/(1 + e^−z), or "relu": σ(z) = max(z, 0)
    cu_seqlens  int32 [N+1] for packed sequences (B = 1, Tq = Tk)
    share       queries of a tile, counted from their sequence's first token: f, the first of them, selects for all,
                S_t = S_f ∪ {f + 1, …, t}, so that no choice looks ahead. Tk − Tq is then a multiple of it
    key_block   keys of a block, counted likewise: the ⌈k_t/key_block⌉ blocks whose best key ranks highest, t's own
                among them, are selected whole, up to t
    backend     auto, triton (candidate buffers; share = key_block = 1; what auto takes on a GPU), torch (blocks of
                queries), reference (one query at a time)
    returns     int32 [B, Tq, n], n = ⌈k_max/key_block⌉·key_block + share − 1: positions along the (packed) axis from
                the latest, t, to the earliest, −1 where unused

    Scores in at least fp32, products summed in fp64 (triton: fp32), so that equal keys get equal scores and tie.
    Scores are ranked in fp32: those of a sigmoid as I_ts/Σ_j w_tj in steps of 2^−40; those of a ReLU, which have no
    such bound, without the last bit: above all the many that are 0 tie. A score that is NaN is selected, so that it
    shows in what is made of the selection; with the variance NaN, an AdaptiveK gives its most keys. Work is T²·HI·DI,
    memory T·(k_max + HI·DI). No gradient passes.
    Raises ValueError for shapes that do not fit, and for scores or a backend that are unknown.
    Source: DeepSeek-AI 2025, DeepSeek-V3.2, equation 1, which has the ReLU; the sigmoid gates are those of
    OrthGSA, step 3.3.
    """
    check_indexer("lightning_topk", q_idx, k_idx, w_idx, bias, cu_seqlens, scores)
    k_max = _widest(k) if k_max is None else k_max
    if k_max < 1 or (isinstance(k, int) and k < 1):
        raise ValueError(f"lightning_topk needs k ≥ 1 and k_max ≥ 1, got k={k}, k_max={k_max}")
    if isinstance(k, int):
        k = AdaptiveK("none", k, 1, k)
    if isinstance(k, Tensor):
        _check_counts(k, q_idx)
    options = {"k": k, "k_max": k_max, "scores": scores, "cu_seqlens": cu_seqlens}
    options |= choice_options("lightning_topk", q_idx, k_idx, share, key_block, cu_seqlens)
    return OPERATION(q_idx, k_idx, w_idx, bias, **options, backend=backend)


def choice_options(
    name: str, q: Tensor, k: Tensor, share: int, key_block: int, cu_seqlens: Tensor | None
) -> dict[str, int]:
    """The options share and key_block for a form's call, none where both are 1, as every form has these.

    Raises ValueError for one below 1, and for queries q [B, Tq, ...] among keys k [B, Tk, ...] that begin in a tile.
    """
    if share < 1 or key_block < 1:
        raise ValueError(
            f"{name} needs share ≥ 1 and key_block ≥ 1, got share={share}, key_block={key_block}"
        )
    ahead = k.shape[1] - q.shape[1]
    if cu_seqlens is None and ahead % share:
        raise ValueError(
            f"{name} with share={share} needs Tk − Tq to be a multiple of it, got {ahead}: the first query of a tile "
            "selects for it"
        )
    return {} if share == key_block == 1 else {"share": share, "key_block": key_block}


def _widest(k: Tensor | int | AdaptiveK) -> int:
    if isinstance(k, Tensor):
        raise ValueError("lightning_topk needs k_max, the width of the result, where k is a tensor")
    return k if isinstance(k, int) else k.widest


def _check_counts(k: Tensor, q_idx: Tensor) -> None:
    if k.shape != q_idx.shape[:2] or k.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"lightning_topk needs k as int32 or int64 [B, Tq] = {tuple(q_idx.shape[:2])}, "
            f"got {k.dtype} {tuple(k.shape)}"
        )


# Operations and bytes, for a roofline.


def work(
    q_idx: Tensor, k_idx: Tensor, w_idx: Tensor, bias: Tensor, *, k, k_max: int | None = None, **_options
) -> list[Work]:
    """Operations and bytes of a call: the scores of the pairs that are visible in a batch, once; no backward.

    Writes to candidate buffers are not counted. Packed sequences have fewer pairs than this.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI]; k as in `kernels.lightning_topk`.
    """
    batch, queries, heads, width = q_idx.shape
    keys = k_idx.shape[1]
    if k_max is None:
        k_max = k if isinstance(k, int) else k.widest
    pairs = batch * (queries * keys - queries * (queries - 1) // 2)
    moved = nbytes(q_idx, k_idx, w_idx, bias) + 4 * batch * queries * k_max
    return [Work("lightning_topk", "forward", 2 * pairs * heads * width, moved)]

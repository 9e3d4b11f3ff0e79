"""The fused form of indexed attention, compiled by Numba: a query reads its own keys alone.

Sequences, and parts of each, run on as many threads as PyTorch may use.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from kernels.numba_common import (
    WIDTH,
    array,
    arrays,
    by_kv_head,
    by_query,
    in_parts,
    keys_by_head,
    keys_by_position,
    parts_of,
)
from kernels.numba_common.attention import (
    KEYS,
    QUERIES,
    QUERIES_BACKWARD,
    attend_backward,
    attend_block,
    dot_heads,
)
from kernels.numba_common.compiled import EXACT, FAST, F, I, compiled, exp32, from_bits, log32, to_bits
from kernels.numba_common.vectors import (
    LANES,
    add_rows,
    highest_of,
    load,
    lowest_of,
    multiply_add,
    scatter_rows,
    spread,
    store,
)
from kernels.ops.indexed_attention.torch_form import Indexer, Output
from kernels.ops.lightning_topk.scores import AdaptiveK

# The indexer's scores of one query and the keys that it selects.
#
# The same order as `lightning_topk`'s: shares I_ts/Σ_j w_tj in fp32 and steps of 2^−40 (a sigmoid's) or scores
# without their last bit (a ReLU's), of equal ones the later key, NaN above all numbers, and the query's own key
# always.

TILE = 128
"""Keys at a time: whole vectors on every processor, so that each key's score is the same sequence of operations."""

BUCKETS = 1024
"""Into which the scores of a query are sorted, to find the one from which on they are selected."""

COARSE = F(2.0**-17)
"""Numbers from here to its double are 2^−40 apart in fp32, smaller ones less."""

UNKNOWN = F(2)
"""The share of a score that is NaN: above all others."""

LARGEST = F(np.finfo(F).max / 2)
"""Scores of a ReLU beyond it are equal: the range of all of them is a number then."""


@compiled(EXACT)
def index_scores(q, k, w, bias, sigmoid, seen, scores, active):
    """scores[s] = Σ_h w[h]·active[h, s], active[h, s] = σ(q[h]·k[:, s] + bias[h]), for s < seen in whole tiles.

    q [HI, ≥ DI], k [DI, T], w, bias [HI], scores [T], active [HI, T]; T a multiple of TILE.
    """
    heads = bias.size
    for first in range(0, seen, TILE):
        h = 0
        while h + 4 <= heads:
            _logits_of_four(q[h : h + 4], k, bias[h : h + 4], first, active[h : h + 4])
            h += 4
        while h < heads:
            _logits_of_one(q[h], k, bias[h], first, active[h])
            h += 1
        here = slice(first, first + TILE)
        total = scores[here]
        total[:] = F(0)
        for h in range(heads):
            _activate(active[h, here], w[h], sigmoid, total)


@compiled(EXACT, inline=True)
def _logits_of_four(q, k, bias, first, out):
    """Four heads' logits of a tile of keys: sums in registers, two vectors of keys for each head."""
    q0, q1, q2, q3 = q[0], q[1], q[2], q[3]
    out0, out1, out2, out3 = out[0], out[1], out[2], out[3]
    start0, start1, start2, start3 = spread(bias[0]), spread(bias[1]), spread(bias[2]), spread(bias[3])
    at = first
    while at < first + TILE:
        more = at + LANES
        a0, a1, a2, a3 = start0, start1, start2, start3
        b0, b1, b2, b3 = start0, start1, start2, start3
        for d in range(k.shape[0]):
            x, y = load(k[d], at), load(k[d], more)
            factor = spread(q0[d])
            a0, b0 = multiply_add(factor, x, a0), multiply_add(factor, y, b0)
            factor = spread(q1[d])
            a1, b1 = multiply_add(factor, x, a1), multiply_add(factor, y, b1)
            factor = spread(q2[d])
            a2, b2 = multiply_add(factor, x, a2), multiply_add(factor, y, b2)
            factor = spread(q3[d])
            a3, b3 = multiply_add(factor, x, a3), multiply_add(factor, y, b3)
        store(out0, at, a0)
        store(out1, at, a1)
        store(out2, at, a2)
        store(out3, at, a3)
        store(out0, more, b0)
        store(out1, more, b1)
        store(out2, more, b2)
        store(out3, more, b3)
        at += 2 * LANES


@compiled(EXACT, inline=True)
def _logits_of_one(q, k, bias, first, out):
    """One head's logits of a tile of keys."""
    at = first
    while at < first + TILE:
        a = spread(bias)
        for d in range(k.shape[0]):
            a = multiply_add(spread(q[d]), load(k[d], at), a)
        store(out, at, a)
        at += LANES


@compiled(EXACT)
def _activate(z, weight, sigmoid, total):
    """Replace a tile's logits by σ of them, and add weight·σ to the total."""
    if sigmoid:
        for s in range(TILE):
            z[s] = F(1) / (F(1) + exp32(-z[s]))
    else:
        for s in range(TILE):
            z[s] = z[s] if z[s] > F(0) else z[s] * F(0)  # NaN stays
    for s in range(TILE):
        total[s] += weight * z[s]


@compiled(FAST)
def variance(scores, seen, heads):
    """The population variance of scores[:seen]/heads."""
    inverse = F(1) / F(heads)
    mean = F(0)
    for s in range(seen):
        mean += scores[s] * inverse
    mean /= F(seen)
    total = F(0)
    for s in range(seen):
        apart = scores[s] * inverse - mean
        total += apart * apart
    return total / F(seen)


@compiled(EXACT)
def count(v, rule):
    """The number of keys for a variance, as `AdaptiveK` gives it; rule: a `Rule`."""
    k = F(rule.base)
    if rule.seed:
        k *= F(1) + F(rule.beta) * F(v + math.log1p(math.exp(-v)))
    elif rule.inverse:
        k *= F(math.sqrt(F(rule.reference) / v)) if v > F(0) else F(math.inf)
    k = k if k < F(rule.most) else F(rule.most)  # NaN too
    return int(np.rint(k if k > F(rule.least) else F(rule.least)))


@compiled(EXACT)
def ordered(scores, w, sigmoid, seen, out):
    """out[s], fp32, s < seen: numbers that are ordered and equal as `lightning_topk` orders and equals scores."""
    if sigmoid:
        total = F(0)
        for h in range(w.size):
            total += w[h]
        total = total if total > F(np.finfo(F).tiny) else F(np.finfo(F).tiny)
        for s in range(seen):
            share = scores[s] / total
            share = share if share >= COARSE else (share + COARSE) - COARSE
            out[s] = share if share == share else UNKNOWN
    else:
        for s in range(seen):
            score = from_bits(to_bits(scores[s]) & I(-2))
            score = score if score <= LARGEST else LARGEST  # NaN too, whose bits are the highest
            out[s] = score if score >= -LARGEST else -LARGEST


@compiled(EXACT)
def threshold(x, n, wanted, histogram, pool, buckets):
    """The wanted-th highest of x[:n], 1 ≤ wanted ≤ n, and how many of those equal to it are among the wanted.

    Buckets between lowest and highest, then the same with the numbers of the bucket that holds it, until all are
    equal. histogram int32 [4, BUCKETS], pool fp32 [n] and buckets int32 [n] are overwritten.
    """
    rest, size = x, n
    while True:
        lowest, highest = lowest_of(rest, size), highest_of(rest, size)
        if not highest > lowest:
            return lowest, wanted
        fill_buckets(rest[:size], lowest, F(BUCKETS - 1) / (highest - lowest), buckets)
        count_buckets(buckets, size, histogram)
        here = BUCKETS - 1
        while here > 0 and histogram[0, here] < wanted:
            wanted -= histogram[0, here]
            here -= 1
        kept = 0
        for i in range(size):
            if buckets[i] == here:
                pool[kept] = rest[i]
                kept += 1
        if kept == size:  # a range beyond fp32's
            return lowest, wanted
        rest, size = pool, kept


@compiled(EXACT)
def fill_buckets(x, lowest, scale, buckets):
    """The place of every x [n] among BUCKETS of width 1/scale from `lowest` on."""
    for i in range(x.size):
        place = (x[i] - lowest) * scale
        place = place if place > F(0) else F(0)
        buckets[i] = I(place if place < F(BUCKETS - 1) else F(BUCKETS - 1))


@compiled(EXACT)
def count_buckets(buckets, n, histogram):
    """histogram[0, b]: how many of buckets[:n] are b. In four counts: neighbours alike do not wait for each other."""
    histogram[:] = 0
    in_fours = n // 4 * 4
    for i in range(0, in_fours, 4):
        histogram[0, buckets[i]] += 1
        histogram[1, buckets[i + 1]] += 1
        histogram[2, buckets[i + 2]] += 1
        histogram[3, buckets[i + 3]] += 1
    for i in range(in_fours, n):
        histogram[0, buckets[i]] += 1
    for b in range(BUCKETS):
        histogram[0, b] += histogram[1, b] + histogram[2, b] + histogram[3, b]


@compiled(EXACT)
def select(order, own, wanted, histogram, pool, buckets, places):
    """Write the places of the wanted − 1 highest of order[:own], and own, in rising order; return their number.

    Of equal ones the later are taken. places int32 [≥ wanted].
    """
    if own < wanted:
        for i in range(own + 1):
            places[i] = i
        return own + 1
    if wanted == 1:
        places[0] = own
        return 1
    edge, equal = threshold(order, own, wanted - 1, histogram, pool, buckets)
    skipped = -equal
    for i in range(own):
        skipped += order[i] == edge
    kept = 0
    for i in range(own):
        same = I(order[i] == edge)
        places[kept] = i  # written before it is known whether it counts, as no processor foresees it
        taken = I(order[i] > edge) | (same & I(skipped <= 0))
        kept += taken & I(kept < wanted - 1)
        skipped -= same
    places[kept] = own
    return kept + 1


# Selection, attention and the loss of one sequence.

TINY = F(np.finfo(F).tiny)


class Attended(NamedTuple):
    """Scaled q [Hkv, T, G', K], k [Hkv, T, K], v [Hkv, T, V]: K and V multiples of WIDTH, G' ≥ G with zeros."""

    q: NDArray
    k: NDArray
    v: NDArray


class Indexed(NamedTuple):
    """Scaled q [T, HI, DI], k [T, DI] and [DI', T'] transposed, w [T, HI], bias [HI], tau; whether σ is the sigmoid.

    Filled up with zeros: DI to a multiple of WIDTH, of which DI' are no zeros, T' to a multiple of TILE.
    """

    q: NDArray
    k: NDArray
    k_t: NDArray
    w: NDArray
    bias: NDArray
    tau: np.float32
    sigmoid: bool


class Rule(NamedTuple):
    """`AdaptiveK` in numbers; seed and inverse say which rule it is, none of them "none"."""

    seed: bool
    inverse: bool
    base: int
    least: int
    most: int
    beta: float
    reference: float


class Results(NamedTuple):
    """o [Hkv, T, G', V], zeros at first; lse [Hkv, T, G]; bits uint8 [T, ⌈T/8⌉], zeros at first."""

    o: NDArray
    lse: NDArray
    bits: NDArray


class Learned(NamedTuple):
    """The loss's gradients q, k and w as in `Indexed`, and the sums of loss, tau and bias, fp64 [2 + HI]; zeros.

    q without the factor of its scale; k and the sums are one part's.
    """

    q: NDArray
    k: NDArray
    w: NDArray
    sums: NDArray


class Block(NamedTuple):
    """Buffers of a block's queries: what they selected and, at those n keys, all numbers that are needed again.

    places int32 [C, n], counts int64 [C], scores [C, n] and active [C, HI, n] of the indexer, weights [C, G', n] of
    attention, target [C, n] their mean over all heads; logits [n], τ times a query's scores.
    """

    places: NDArray
    counts: NDArray
    scores: NDArray
    active: NDArray
    weights: NDArray
    target: NDArray
    logits: NDArray


@compiled(FAST)
def forward(attended, indexed, rule, results, learned, learns, part, parts):
    """Run every parts-th block from `part` on: fills `Results` and `Learned`."""
    time, heads = indexed.w.shape
    most = min(rule.most, time)
    group = attended.q.shape[2]
    block = Block(
        np.empty((QUERIES, most), I),
        np.empty(QUERIES, np.int64),
        np.empty((QUERIES, most), F),
        np.empty((QUERIES, heads, most), F),
        np.empty((QUERIES, group, most), F),
        np.empty((QUERIES, most), F),
        np.empty(most, F),
    )
    padded = indexed.k_t.shape[1]
    scores, active = np.empty(padded, F), np.empty((heads, padded), F)
    order, pool = np.empty(padded, F), np.empty(padded, F)
    buckets, histogram = np.empty(padded, I), np.empty((4, BUCKETS), I)
    weight = F(1) / F(time)
    for first in range(part * QUERIES, time, parts * QUERIES):
        last = min(first + QUERIES, time)
        for t in range(first, last):
            index_scores(
                indexed.q[t], indexed.k_t, indexed.w[t], indexed.bias, indexed.sigmoid, t + 1, scores, active
            )
            wanted = min(count(variance(scores, t + 1, heads), rule), t + 1)
            ordered(scores, indexed.w[t], indexed.sigmoid, t, order)
            n = select(order, t, wanted, histogram, pool, buckets, block.places[t - first])
            block.counts[t - first] = n
            keep(block.places[t - first], n, scores, active, results.bits[t], block, t - first)
        attend(attended, results, block, first, last)
        for t in range(first, last):
            learn(indexed, learned, learns, block, t - first, t, weight)


@compiled(FAST)
def keep(places, n, scores, active, bits, block, c):
    """Gather what the indexer has at the selected places, and mark them in the query's bits."""
    for j in range(n):
        at = places[j]
        bits[at >> 3] |= np.uint8(128 >> (at & 7))
        block.scores[c, j] = scores[at]
    for h in range(active.shape[0]):
        for j in range(n):
            block.active[c, h, j] = active[h, places[j]]


@compiled(FAST)
def attend(attended, results, block, first, last):
    """Attention of the queries [first, last) to the keys that they selected, and the mean of all heads' weights."""
    kv_heads, _, group = results.lse.shape
    share, counts = F(1) / F(kv_heads * group), block.counts[: last - first]
    begin = np.empty(last - first, np.int64)
    block.target[:] = F(0)
    for head in range(kv_heads):
        q, lse, o = attended.q[head, first:last], results.lse[head, first:last], results.o[head, first:last]
        attend_block(
            q, attended.k[head], attended.v[head], block.places, counts, begin, block.weights, lse, o
        )
        for c in range(last - first):
            for g in range(group):
                add_to(block.target[c], block.weights[c, g], share, counts[c])


@compiled(FAST)
def add_to(out, x, factor, n):
    """out[:n] += factor·x[:n]."""
    for j in range(n):
        out[j] += factor * x[j]


@compiled(FAST)
def learn(indexed, learned, learns, block, c, t, weight):
    """Add query t's KL(p ‖ softmax(τ·I)) over its selected keys, times weight, and the gradients of that.

    With g = weight·(π − p) and z the logits of the indexer's heads: ∂I = τ·g, ∂w = Σ_s ∂I·σ(z), ∂z = ∂I·w·σ′(z).
    """
    n, tau = block.counts[c], indexed.tau
    p, scores, logits = block.target[c], block.scores[c], block.logits
    for j in range(n):
        logits[j] = tau * scores[j]
    highest, total, loss = highest_of(logits, n), F(0), F(0)
    for j in range(n):
        total += exp32(logits[j] - highest)
    shift = highest + F(math.log(total))
    for j in range(n):
        target = p[j] if p[j] > TINY else TINY
        loss += p[j] * (log32(target) - (logits[j] - shift))
    learned.sums[0] += weight * loss
    if not learns:
        return
    by_tau = F(0)
    for j in range(n):
        slope = weight * (exp32(logits[j] - shift) - p[j])
        by_tau += slope * scores[j]
        p[j] = slope * tau
    learned.sums[1] += by_tau
    for h in range(indexed.w.shape[1]):
        active, w = block.active[c, h], indexed.w[t, h]
        by_w, by_bias = F(0), F(0)
        for j in range(n):
            x = active[j]
            by_w += p[j] * x
            inner = x * (F(1) - x) if indexed.sigmoid else F(x > F(0))
            x = p[j] * w * inner
            by_bias += x
            active[j] = x
        learned.w[t, h] = by_w
        learned.sums[2 + h] += by_bias
    add_rows(block.active[c], indexed.k, block.places[c], 0, n, learned.q[t])
    scatter_rows(block.active[c], indexed.q[t], block.places[c], 0, n, learned.k)


# The gradients of attention over a selection that is known.


class Gradients(NamedTuple):
    """q [Hkv, T, G', K] without the factor of its scale, k [Hkv, T, K] and v [Hkv, T, V] of a part; zeros at first."""

    q: NDArray
    k: NDArray
    v: NDArray


@compiled(FAST)
def backward(attended, results, grad, gradients, part, parts):
    """Add the gradients of every parts-th block from `part` on; grad [Hkv, T, G', V] is that of `Results`' o."""
    kv_heads, time, padded, _ = attended.q.shape
    group = results.lse.shape[2]
    places = np.empty(KEYS + 1, I)
    weights, slopes = np.empty((padded, KEYS), F), np.empty((padded, KEYS), F)
    along = np.empty((QUERIES_BACKWARD, group), F)
    for first in range(part * QUERIES_BACKWARD, time, parts * QUERIES_BACKWARD):
        last = min(first + QUERIES_BACKWARD, time)
        for head in range(kv_heads):
            q, k, v, lse = attended.q[head], attended.k[head], attended.v[head], results.lse[head]
            d_q, d_k, d_v = gradients.q[head], gradients.k[head], gradients.v[head]
            for t in range(first, last):
                dot_heads(grad[head, t], results.o[head, t], along[t - first])
            for tile in range(0, last, KEYS):
                for t in range(max(first, tile), last):
                    n = places_of(results.bits[t], tile, min(tile + KEYS, t + 1), places)
                    given, by_o = (q[t], k, v, grad[head, t], lse[t]), along[t - first]
                    attend_backward(*given, by_o, places, n, weights, slopes, d_q[t], d_k, d_v)


@compiled(FAST)
def places_of(bits, first, last, places):
    """Write the places in [first, last) of the ones in bits, uint8 [n], a byte's highest first; return their number.

    first is a multiple of 8, and no bit from last on is one. places has room for one more: a place is written before it
    is known whether it counts, as no processor foresees it.
    """
    kept = 0
    for at in range(first >> 3, (last + 7) >> 3):
        byte = I(bits[at])
        for bit in range(8):
            places[kept] = 8 * at + bit
            kept += (byte >> (7 - bit)) & 1
    return kept


# Calls: tensors by sequence and KV head, rows filled up with zeros to whole vectors, and work on threads.


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Attended:
    """`Attended` of all sequences: q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V]."""
    return Attended(by_kv_head(q * scale, k.shape[2]), keys_by_head(k), keys_by_head(v))


def empty_results(q: Tensor, v: Tensor) -> Results:
    """`Results` of all sequences, to be filled."""
    batch, time, heads, _ = q.shape
    o = torch.zeros_like(by_kv_head(q.new_empty(1, 1, heads, v.shape[3]), v.shape[2]))
    bits = q.new_zeros(batch, time, math.ceil(time / 8), dtype=torch.uint8)
    lse = q.new_empty(batch, v.shape[2], time, heads // v.shape[2])
    return Results(o.repeat(batch, 1, time, 1, 1), lse, bits)


def indexed(indexer: Indexer, kind: str) -> Indexed:
    """`Indexed` of all sequences; kind: the scores, "sigmoid" or "relu"."""
    width, time = indexer.q.shape[3], indexer.k.shape[1]
    q, k = (pad(x, (0, -width % WIDTH)).contiguous() for x in (indexer.q * width**-0.5, indexer.k))
    k_t = pad(indexer.k.mT, (0, -time % TILE)).contiguous()
    return Indexed(
        q, k, k_t, indexer.w.contiguous(), indexer.bias.contiguous(), indexer.tau, kind == "sigmoid"
    )


def empty_gradients(index: Indexed, parts: int, learns: bool) -> Learned:
    """`Learned` of all sequences, zeros; k and the sums of each of so many parts; no tokens if nothing `learns`."""
    (batch, time, heads), width = index.w.shape, index.k.shape[2]
    time = time if learns else 0
    q, k, w = (
        index.k.new_zeros(batch, *shape)
        for shape in ((time, heads, width), (parts, time, width), (time, heads))
    )
    return Learned(q, k, w, index.k.new_zeros(batch, parts, 2 + heads, dtype=torch.float64))


def gradients(indexer: Indexer, learned: Learned) -> tuple[Tensor, Indexer]:
    """The loss [] and its gradients in the shapes of the indexer's tensors, means over the batch."""
    batch, _, _, width = indexer.q.shape
    q, k = learned.q[..., :width] * (width**-0.5 / batch), learned.k.sum(1)[..., :width] / batch
    sums = (learned.sums.sum((0, 1)) / batch).to(q.dtype)
    loss, by_tau, by_bias = (
        sums[at].clone() for at in (0, 1, slice(2, None))
    )  # operators' results share nothing
    return loss, Indexer(q, k, learned.w / batch, by_bias, by_tau)


def rule_numbers(rule: AdaptiveK) -> Rule:
    """The rule in numbers."""
    kinds = (rule.rule == "seed", rule.rule == "inverse")
    return Rule(*kinds, rule.base, rule.least, rule.widest, rule.beta, rule.reference)


def attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, indexer: Indexer, rule: AdaptiveK, kind: str, scale: float, learns: bool
) -> tuple[Output, Tensor, Indexer | None]:
    """The output, the loss [] in nats, and where the indexer `learns` the loss's gradients, else None.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], all fp32; kind: the scores, "sigmoid" or "relu".
    """
    q, k, v, *tensors = (x.detach() for x in (q, k, v, *indexer))
    indexer, parts, numbers = Indexer(*tensors), parts_of(len(q)), rule_numbers(rule)
    given, results = attended(q, k, v, scale), empty_results(q, v)
    index = indexed(indexer, kind)
    learned = empty_gradients(index, parts, learns)
    constants = (array(index.bias), np.float32(index.tau.item()), index.sigmoid)

    def work(b: int, part: int) -> None:
        (d_q, d_w), (d_k, sums) = (
            arrays((learned.q, learned.w), b),
            arrays((learned.k, learned.sums), b, part),
        )
        learning = Learned(d_q, d_k, d_w, sums)
        inputs = (Attended(*arrays(given, b)), Indexed(*arrays(index[:4], b), *constants))
        forward(*inputs, numbers, Results(*arrays(results, b)), learning, learns, part, parts)

    in_parts(work, len(q))
    o = by_query(results.o, (*q.shape[:3], v.shape[3]))
    output = Output(o, results.lse.flatten(0, 1).flatten(1).unsqueeze(-1), results.bits)
    loss, grads = gradients(indexer, learned)
    return output, loss, grads if learns else None


def attend_in_blocks_backward(
    grad: Tensor, out: Output, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k, v from that of o, grad [B, T, H, V]; all fp32."""
    grad, q, k, v, o, lse, bits = (x.detach() for x in (grad, q, k, v, *out))
    kv_heads, parts = k.shape[2], parts_of(len(q))
    given = attended(q, k, v, scale)
    lse = lse.view(len(q), kv_heads, q.shape[1], -1)
    results = Results(by_kv_head(o, kv_heads), lse, bits)
    d_out, d_q = by_kv_head(grad, kv_heads), torch.zeros_like(given.q)
    d_k, d_v = (x.new_zeros(len(q), parts, *x.shape[1:]) for x in (given.k, given.v))

    def work(b: int, part: int) -> None:
        part_gradients = Gradients(array(d_q[b]), *arrays((d_k, d_v), b, part))
        inputs = (Attended(*arrays(given, b)), Results(*arrays(results, b)))
        backward(*inputs, array(d_out[b]), part_gradients, part, parts)

    in_parts(work, len(q))
    dk, dv = keys_by_position(d_k.sum(1), k), keys_by_position(d_v.sum(1), v)
    return by_query(d_q.mul_(scale), q.shape), dk, dv

"""The calls that suite=kernels measures: every operation that has a Triton form, at sizes used in training.

Sizes are those of the reference model (width 768, the mixers' default sizes), and those of published comparisons
where there are any. A case holds batch times length fixed while the length grows; past that the batch is 1.
"""

from __future__ import annotations

from experiments.bench.cases import attention, recurrent, residual
from experiments.bench.cases.call import TOKENS, Case
from zoo.errors import unknown

CASES = {
    case.name: case
    for case in (
        Case("delta_rule, KDA", recurrent.kda, tokens=8192, torch_limit=8192),
        Case("delta_rule, a gate a head", recurrent.gated_delta, tokens=8192, torch_limit=8192),
        Case("delta_rule, KDA, a step", recurrent.kda_step, tokens=64, length=1, backward=False),
        Case("memory_mixture", recurrent.memory_mixture),
        Case("memory_mixture, a step", recurrent.memory_step, tokens=64, length=1, backward=False),
        Case("path_attention", attention.path, compiled=1024),
        Case("path_step", attention.path_step, backward=False, torch_limit=TOKENS),
        Case("mesa", recurrent.mesa),
        Case("mesa, a step", recurrent.mesa_step, tokens=64, length=1, backward=False),
        Case("mesa, heads of 256", lambda d: recurrent.mesa(d, 3, 256)),
        Case(
            "mesa, heads of 256, a step",
            lambda d: recurrent.mesa_step(d, 3, 256),
            tokens=64,
            length=1,
            backward=False,
        ),
        Case("lightning_topk", attention.lightning_topk, backward=False),
        Case("lightning_topk, DSA", attention.dsa_topk, backward=False),
        Case("sparse_attention", attention.sparse),
        Case("sparse_attention with its gate", attention.gated_sparse),
        Case("sparse_attention with its indexer", attention.sparse_with_indexer),
        Case(
            "sparse_attention with its indexer, 64 heads to one",
            lambda d: attention.sparse_with_indexer(d, 64, 1, 128),
        ),
        Case("indexer_kl", attention.indexer_kl),
        Case("indexer_kl, DSA", attention.dsa_kl),
        Case("nsa_attention", attention.nsa),
        Case("nsa_attention, groups of 16", lambda d: attention.nsa(d, 64, 128), tokens=65_536),
        Case("timeline_attention", attention.timelines),
        Case("short_conv", residual.short_conv),
        Case("short_conv, a step", residual.short_conv_step, tokens=64, length=1, backward=False),
        Case("hyper_coefficients", lambda d: [residual.coefficients(d)]),
        Case("cayley", lambda d: [residual.mixing_map(d, "cayley")]),
        Case("sinkhorn", lambda d: [residual.mixing_map(d, "sinkhorn")]),
        Case("hyper_pre", lambda d: [residual.pre(d)]),
        Case("hyper_coefficients and hyper_pre with the norm", residual.reading),
        Case("hyper_post", lambda d: [residual.post(d)]),
        Case("hyper-connections, oHC", lambda d: residual.wrapped(d, "cayley")),
        Case("hyper-connections, mHC", lambda d: residual.wrapped(d, "sinkhorn")),
    )
}


def matching_names(wanted: list[str] | None, known: list[str]) -> list[str]:
    """The names that begin with one of `wanted` (None: all). Raises UserError for a beginning that none has."""
    for start in wanted or []:
        if not any(name.startswith(start) for name in known):
            raise unknown("bench.cases", start, known)
    return [name for name in known if wanted is None or name.startswith(tuple(wanted))]

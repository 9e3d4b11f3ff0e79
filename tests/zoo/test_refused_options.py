"""Options of blocks that mean nothing are refused by name, before a model is built."""

import math

import pytest

from zoo import ModelConfig, UserError, registry
from zoo.model import on_meta

YARN = {"rope_scaling": "yarn", "rope_factor": 2.0, "rope_length": 64}
# Block -> wrong options, and what is said of them.
REFUSED = {
    "attention": [
        ({"n_heads": 5}, "does not divide model.d_model"),
        ({"n_heads": 0}, "n_heads=0"),
        ({"n_heads": -4}, "n_heads=-4"),
        ({"n_heads": 24}, "odd"),
        ({"n_kv_heads": 3}, "n_kv_heads=3"),
        ({"n_kv_heads": 0}, "n_kv_heads=0"),
        ({"n_kv_heads": -2}, "n_kv_heads=-2"),
        ({"positions": "alibi"}, "'alibi'"),
        ({"window": 0}, "window=0"),
        ({"max_kv_heads": 0}, "attention.max_kv_heads=0 must be at least 1"),
        ({"rope_dim": 3}, "attention.rope_dim=3 must be even, from 2 to the head width 6"),
        ({"rope_dim": 8}, "attention.rope_dim=8 must be even"),
        ({"rope_dim": 2, "positions": "none"}, "attention has no rotary positions"),
        ({"rope_scaling": "ntk"}, "rope_scaling must be one of none, linear, llama3, yarn, not 'ntk'"),
        ({"rope_scaling": "linear"}, "attention.rope_scaling=linear needs attention.rope_factor"),
        ({"rope_scaling": "yarn", "rope_factor": 2.0}, "rope_scaling=yarn needs attention.rope_length"),
        ({"rope_factor": 2.0}, "attention.rope_factor=2.0 has no effect with attention.rope_scaling=none"),
        ({"rope_scaling": "linear", "rope_factor": 0.5}, "attention.rope_factor=0.5 must be at least 1"),
        ({**YARN, "rope_slow": 9.0, "rope_fast": 3.0}, "attention.rope_slow=9.0 must be above 0 and below"),
        ({**YARN, "rope_mscale": -1.0}, "attention.rope_mscale=-1.0 must be at least 0"),
        ({**YARN, "rope_base": 1.0}, "attention.rope_base=1.0 must be above 1"),
        ({"rope_base": -1.0}, "rope_base=-1.0"),
    ],
    "mla": [
        ({"rope_dim": 3}, "mla.rope_dim=3 must be even"),
        ({"rope_dim": -2}, "mla.rope_dim=-2 must be even"),
        ({"kv_rank": 0}, "mla.kv_rank=0 must be at least 1"),
        ({"q_rank": -1}, "mla.q_rank=-1 must be at least 0"),
        ({"rope_base": 0.0}, "mla.rope_base=0.0 must be a number above 0"),
        ({"n_heads": 5}, "n_heads=5 does not divide model.d_model=24"),
        ({"rope_keys": "both"}, "mla.rope_keys must be one of shared, per_head, not 'both'"),
        ({"rope_keys": "per_head", "rope_dim": 0}, "rope_keys=per_head needs rotary keys"),
        ({"value_width": 0}, "mla.value_width=0 must be at least 1"),
        ({"positions": "all"}, "mla.positions must be one of rope, none, not 'all'"),
        ({"positions": "none", "rope_scaling": "linear", "rope_factor": 2.0}, "mla has no rotary positions"),
        ({"rope_mscale_all": 1.0}, "mla.rope_mscale_all=1.0 has no effect with mla.rope_scaling=none"),
    ],
    "kda": [
        ({"kernel_size": 0}, "kda.kernel_size=0 must be at least 1"),
        ({"n_heads": 3}, "kda.n_heads=3 does not divide"),
        ({"decay": "token"}, "kda.decay must be one of channel, head, not 'token'"),
    ],
    "path_fox": [
        ({"n_kv_heads": 3}, "path_fox.n_kv_heads=3 does not divide n_heads=4"),
        ({"rank": 0}, "path_fox.rank=0 must be at least 1"),
        ({"forget_bias": float("nan")}, "path_fox.forget_bias=nan must be"),
        ({"forget_bias": -1.0}, "path_fox.forget_bias=-1.0 must be at least 0"),
        ({"n_heads": 5}, "n_heads=5 does not divide model.d_model=32"),
    ],
    "mesanet": [
        ({"cg_steps": 0}, "mesanet.cg_steps=0"),
        ({"forget_bias": -1.0}, "mesanet.forget_bias=-1.0 must be at least 0"),
        ({"kernel_size": 0}, "kernel_size=0 must be at least 1"),
        ({"n_heads": 3}, "mesanet.n_heads=3 does not divide"),
    ],
    "mom": [
        ({"top_k": 0}, "mom.top_k=0 must be from 1 to n_memories=4"),
        ({"top_k": 5}, "mom.top_k=5 must be from 1 to n_memories=4"),
        ({"n_heads": 0}, "mom.n_heads=0"),
        ({"head_width": 0}, "head_width=0 must be at least 1"),
        ({"update": "hebb"}, "mom.update must be one of gated_delta, gated_linear, linear, not 'hebb'"),
        ({"update": "linear", "neg_eigval": True}, "mom.neg_eigval needs mom.update=gated_delta"),
        ({"update": "gated_linear", "neg_eigval": True}, "mom.update=gated_linear no eigenvalue"),
    ],
    "nsa": [
        ({"n_select": 2}, "nsa.n_select=2 must be at least 3"),
        ({"window": 0}, "nsa.window=0 must be at least 1"),
        ({"stride": 0}, "nsa.stride=0"),
        ({"stride": 3}, "nsa.block_size=4 must be a multiple of nsa.stride=3"),
        ({"select_size": 5}, "nsa.select_size=5 must be a multiple of nsa.stride=2"),
        ({"n_kv_heads": 3}, "nsa.n_kv_heads=3 does not divide n_heads=4"),
        ({"n_heads": 5}, "n_heads=5 does not divide"),
        ({"n_heads": 32}, "width 1 is odd"),
        ({"rope_base": -1.0}, "nsa.rope_base=-1.0 must be a number above 0"),
    ],
    "gsa": [
        ({"n_kv_heads": 3}, "gsa.n_kv_heads=3 does not divide n_heads=4"),
        ({"n_heads": 16, "n_kv_heads": 0}, "gsa.n_kv_heads=0"),
        ({"n_heads": 32}, "head width 1 is odd"),
        ({"adaptive": "invers"}, "seed, inverse, none, not 'invers'"),
        ({"scores": "Relu"}, "gsa.scores must be one of sigmoid, relu, not 'Relu'"),
        ({"scores": "relu"}, "those of gsa.scores=relu are not; set gsa.adaptive=none"),
        ({"k_base": 4, "k_max": 3}, "k_min ≤ k_base ≤ k_max, not 1, 4, 3"),
        ({"index_width": 0}, "gsa.index_width=0"),
        ({"reference_variance": 0.0}, "gsa.reference_variance=0.0"),
        ({"warmup": -1}, "gsa.warmup=-1"),
        ({"share": 0}, "gsa.share=0"),
        ({"key_block": 0}, "gsa.key_block=0"),
    ],
    "hypergraph": [
        ({"n_timelines": 0}, "n_timelines=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"positions": "both"}, "'both'"),
        ({"n_heads": 0}, "n_heads=0"),
        ({"n_heads": 16}, "odd"),
        ({"rope_base": 0.0}, "rope_base=0.0"),
        ({"top_k": 0}, "hypergraph.top_k=0 must lie between 1 and n_timelines=6"),
        ({"top_k": 7}, "hypergraph.top_k=7 must lie between 1 and n_timelines=6"),
        ({"entropy_weight": -0.01}, "hypergraph.entropy_weight=-0.01 must be at least 0"),
        ({"z_weight": math.inf}, "hypergraph.z_weight=inf must be a finite number"),
    ],
    "mlp": [
        ({"activation": "silu"}, "mlp.activation must be one of gelu, relu2, not 'silu'"),
        ({"hidden": 0}, "mlp.hidden=0 must be at least 1"),
    ],
    "moe": [
        ({"top_k": 9}, "moe.top_k=9 must lie between 1 and moe.n_experts=8"),
        ({"top_k": 0}, "moe.top_k=0"),
        ({"n_shared": -1}, "moe.n_shared=-1"),
        ({"scores": "tanh"}, "moe.scores must be one of sigmoid, softmax, not 'tanh'"),
        ({"groups": 0}, "moe.groups=0 must be at least 1"),
        ({"groups": 3}, "moe.groups=3 does not divide moe.n_experts=8"),
        ({"groups": 4}, "moe.groups=4 needs moe.top_groups"),
        ({"groups": 4, "top_groups": 5}, "moe.top_groups=5 must lie between 1 and moe.groups=4"),
        ({"groups": 4, "top_groups": 1, "top_k": 3}, "top_k=3 exceeds the 2 experts of moe.top_groups=1"),
        ({"hidden": 0}, "moe.hidden=0"),
        ({"balance_rate": -1.0}, "moe.balance_rate=-1.0"),
    ],
}
# Width and heads of the model, and options beside the wrong ones.
SMALL = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5, "n_kv_heads": 2}
SIZES = {"attention": (24, 4, {}), "mla": (24, 3, {}), "mom": (12, 4, {"n_heads": 2, "head_width": 4})}
SIZES |= {"nsa": (32, 4, SMALL), "gsa": (32, 4, {"warmup": 0}), "hypergraph": (16, 2, {})}
SCHEMES = [
    ("ohc", {"n_streams": 1}, "n_streams=1 must be at least 2"),
    ("hc", {"init": "zero"}, "init of a residual scheme must be one of identity, seed, not 'zero'"),
    ("mhc", {"readout": "max"}, "readout of a residual scheme must be one of mean, learned, not 'max'"),
    ("mhc", {"iters": 0}, "mhc.iters=0 must be at least 1"),
    ("shc", {"k": 0}, "shc.k=0 must be at least 1"),
    ("shc", {"factorise": 5}, "shc.factorise=5 must lie between 0 (off) and n_streams=4"),
    ("ohc", {"warmup_ramp": -1}, "warmup_ramp=-1"),
    ("hc", {"warmup_share": 0.0}, "warmup_share=0.0 must be above 0 and at most 1, or null"),
    ("hc", {"warmup_share": 1.5}, "warmup_share=1.5 must be"),
    ("mhc", {"lr_scale": -1.0}, "lr_scale=-1.0"),
    ("shc", {"alpha": 0.0}, "coefficients could never learn to depend on the streams"),
    ("hc", {"expansion": "tile"}, "expansion of a residual scheme must be one of copy, learned, not"),
    ("ohc", {"inverse": "solve"}, "ohc.inverse must be one of exact, neumann, not 'solve'"),
    ("ohc", {"neumann_terms": 0}, "ohc.neumann_terms=0 must be at least 1"),
    ("ohc", {"clip": "layer"}, "clip of a residual scheme must be one of together, each, not 'layer'"),
    ("ohc", {"cayley_scale": 0.0}, "ohc.cayley_scale=0.0 must be a number above 0"),
]
CASES = [(name, *case) for name, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("name", "options", "said"), CASES + SCHEMES, ids=str)
def test_options_that_mean_nothing_are_refused(name, options, said):
    (block,) = (found for kind in registry.KINDS if (found := registry.blocks(kind).get(name)))
    d_model, n_heads, base = SIZES.get(name, (32, 4, {}))
    config = ModelConfig(d_model=d_model, n_heads=n_heads, pattern=block.letter or "F")
    node = config.mixers if block.letter else getattr(config, block.kind)
    if not block.letter:
        node.name = name
    for key, value in (base | options).items():
        setattr(getattr(node, name), key, value)
    with pytest.raises(UserError) as caught:
        on_meta(config, vocab_size=11, seq_len=16)
    assert said in str(caught.value)

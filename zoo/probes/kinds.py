"""The kinds of probe events that any block may record: B sequences of T tokens, H heads.

A kind that one block alone records is registered in that block's file.
"""

from __future__ import annotations

from zoo.probes.events import register_event

register_event(
    "streams",
    streams="[B, T, D] or [B, T, n, D] before a sub-block (after the last one: part 'head'), attached to the graph",
    pre="[B, T, n], with several streams: how a sub-block reads them",
    post="[B, T, n], with several streams: how its output is written into them",
    res="[B, T, n, n], with several streams: H_res, how they mix",
    path_gain="[], where a scheme has one: the bound of ‖∂(H_res(x)x)/∂x − H_res‖₂ for all x, after its cap",
)
register_event(
    "attention", weights="[B, H, T, T]: how much of token s (last axis) goes into token t; rows sum to 1"
)
register_event("gates", **{"<gate>": "[B, T, H, ...] in (0, 1), one tensor a gate, by the gate's name"})
register_event(
    "selection",
    selected="bool [B, H, T, T]: the tokens that a query may read",
    dense="[B, H, T, T], where the block learns to find what full attention would read: that attention's weights",
)
register_event(
    "routing",
    probabilities="[B, T, H, E]; one head where heads share a router",
    choices="int64 [B, T, H, k], the most probable first",
)
register_event(
    "recurrence",
    states="[B, P, M, H, K, V] after `ends` tokens, in M memories",
    ends="int64 [P], numbers of tokens",
    log_decay="[B, T, M, H, K or 1] in nats, NaN where a token leaves a memory alone",
)

"""nsa_attention's Triton kernels against the definition: the three branches, the choice, packing, odd sizes."""

import dataclasses
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import triton
from support.kernel_cases import normal, packed, rmse_ratio
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only
from torch import Tensor

from kernels import attention, nsa_attention
from kernels.ops.nsa_attention import OPERATION, triton_backward, triton_forward, work
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.triton_common.tuning import Tuned

SMALL = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}


def inputs(
    batch,
    time,
    heads=2,
    kv_heads=1,
    width=16,
    value_width=16,
    queries=None,
    blocks=None,
    near=None,
    rotated=True,
) -> dict[str, Tensor]:
    """q, q_rotated, k and v of three branches, gates; as many compressed blocks as stride 2 can need."""
    blocks = max(1, time // 2) if blocks is None else blocks
    queries = queries or time
    made = {"q": normal(batch, queries, heads, width, seed=1)}
    if rotated:
        made["q_rotated"] = normal(batch, queries, heads, width, seed=2)
    for seed, (name, length) in enumerate((("cmp", blocks), ("slc", time), ("win", near or time))):
        made[f"k_{name}"] = normal(batch, length, kv_heads, width, seed=3 + seed)
        made[f"v_{name}"] = normal(batch, length, kv_heads, value_width, seed=6 + seed)
    return {**made, "gates": torch.sigmoid(normal(batch, queries, heads, 3, seed=9))}


def call(*, q, k_cmp, v_cmp, k_slc, v_slc, k_win, v_win, gates, **options) -> Tensor:
    """The operation, with its tensors by name."""
    options = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in options.items()}
    branches = (k_cmp, v_cmp), (k_slc, v_slc), (k_win, v_win)
    return nsa_attention(q, *branches, gates, **{**SMALL, **options})


def only(branch: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with the gate of one branch 1 and the others 0."""
    gates = torch.zeros_like(tensors["gates"])
    return {**tensors, "gates": gates.index_fill_(-1, torch.tensor(branch), 1)}


def run(tensors: dict[str, Tensor], **options) -> Tensor:
    """The kernels' output, of fp32 inputs."""
    with kernels_only():
        return call(
            **{name: x.to(DEVICE, torch.float32) for name, x in tensors.items()}, backend="triton", **options
        )


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# The interpreter's time goes by the number of programs: few queries, few heads.
CASES = {
    "one query for all branches": (inputs(1, 13, rotated=False), {}),
    "packed": (inputs(1, 22), {"cu_seqlens": packed(17, 0, 1, 4)}),
    "groups of 3, narrow values": (inputs(2, 7, heads=6, kv_heads=2, width=24, value_width=5), {"scale": 0.7}),
    "a KV head a head, wide": (inputs(1, 13, kv_heads=2, width=256, value_width=200), {}),
    "17 heads a group": (inputs(1, 21, heads=17, queries=5), {}),
    "shorter q, more blocks than needed": (inputs(2, 30, queries=7, blocks=20), {}),
    "one query, short window": (inputs(2, 50, queries=1, near=9), {}),
    "one token": (inputs(1, 1), {}),
    "no blocks": (inputs(1, 6, blocks=0), {"block_size": 8, "select_size": 8}),
    "large blocks": (inputs(1, 70, queries=16), {"block_size": 6, "select_size": 8, "n_select": 3, "window": 200}),
    "small blocks": (inputs(1, 40, queries=16), {"block_size": 12, "select_size": 2, "n_select": 9, "window": 1}),
    "stride 1": (inputs(1, 30, blocks=30, queries=16), {"block_size": 3, "stride": 1, "select_size": 5}),
    "long blocks, in two tiles": (inputs(1, 90, queries=9), {"select_size": 80}),
    "the largest window": (inputs(1, 9), {"window": 2**31 - 1}),
    "a window beyond int32, packed": (inputs(1, 12), {"window": 2**40, "cu_seqlens": packed(3, 9)}),
}  # fmt: skip


FAST = ("one query for all branches", "packed")
SLOW = ("shorter q, more blocks than needed", "one token", "no blocks", "large blocks", "stride 1")


def cases() -> list:
    marks = dict.fromkeys(CASES, pytest.mark.long) | dict.fromkeys(SLOW, pytest.mark.slow)
    return [pytest.param(x, marks=[] if x in FAST else marks[x]) for x in CASES]


@pytest.mark.parametrize("case", cases())
@pytest.mark.slow
def test_kernels_equal_the_definition(case):
    tensors, options = CASES[case]
    # A window of one token passes its key no gradient: what is left is rounding, added up.
    limits = {"k_win": 1e-4} if options.get("window") == 1 else None
    assert_kernel_agrees(partial(call, **options), tensors, torch.float32, limits=limits)


@pytest.mark.slow
@HALF
def test_half_precision(dtype):
    tensors, options = CASES["packed"]
    assert_kernel_agrees(partial(call, **options), tensors, dtype, keep=["gates"], gates=["gates"])


@pytest.mark.long
def test_many_tiles_and_parts(monkeypatch):
    """The loops over tiles of queries, keys, blocks and over the parts of a list, which small inputs run once."""
    small_tiles(monkeypatch)
    options = {"cu_seqlens": packed(3, 27), "window": 19}
    assert_kernel_agrees(partial(call, **options), inputs(1, 30), torch.float32)


def small_tiles(monkeypatch) -> None:
    """Tiles of 16 rows, and lists of queries in parts of 5."""
    monkeypatch.setattr(triton_forward, "TILE_BYTES", 1)
    monkeypatch.setattr(triton_forward, "SPLIT", 5)
    tiled = (
        triton_forward,
        triton_backward,
        triton_forward,
        triton_forward,
        triton_backward,
    )
    for module in tiled:
        for kernel in vars(module).values():
            if isinstance(kernel, Tuned) and kernel.configs[0].kwargs:
                monkeypatch.setattr(
                    kernel, "configs", [triton.Config(dict.fromkeys(kernel.configs[0].kwargs, 16))]
                )


@pytest.mark.slow
def test_the_selection_branch_with_everything_selected_is_full_attention():
    tensors = only(1, inputs(1, 19))
    wanted = attention(*(tensors[name] for name in ("q_rotated", "k_slc", "v_slc")), backend="reference")
    below(rmse_ratio(run(tensors, n_select=5).cpu(), wanted), 1e-6)


def test_a_query_that_sees_no_block_gets_zero():
    out = run(only(0, inputs(1, 9)))
    assert not out[:, :3].any()
    assert out[:, 3:].abs().amin() > 0


def chosen(tensors: dict[str, Tensor], sizes: Sizes, backend: str) -> list[list[int]]:
    """Of every query of one sequence and one KV head, which blocks of tokens it reads."""
    time = tensors["k_slc"].shape[1]
    tokens = torch.eye(time, dtype=torch.float64)[None, :, None]
    values = {"v_slc": tokens, "v_win": tokens, "v_cmp": tokens[:, : tensors["k_cmp"].shape[1]]}
    given = {name: x.to(DEVICE) for name, x in only(1, {**tensors, **values}).items()}
    options = dataclasses.asdict(sizes)
    out = run(given, **options) if backend == "triton" else call(**given, backend=backend, **options)
    read = F.pad(out[0].sum(1) > 0, (0, -time % sizes.select_size)).unflatten(1, (-1, sizes.select_size))
    return [row.any(1).nonzero()[:, 0].tolist() for row in read.cpu()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal keys", "two that tie", "no weight left", "nothing alike"])
def test_choices_and_ties_are_those_of_the_definition(kind, monkeypatch):
    """Ties go to the lower block, in one tile of blocks and in several."""
    tensors = inputs(1, 90, queries=6)
    if kind != "nothing alike":
        tensors["k_cmp"][:] = 0
    if kind == "two that tie":
        tensors["k_cmp"][:, [9, 19, 31, 33]] = 2 * tensors["q"][:, 0, :1]
    if kind == "no weight left":
        tensors["k_cmp"][:, 11] = 1000 * tensors["q"][:, 0, :1]
    sizes = Sizes(4, 2, 4, 5, 5)
    wanted = chosen(tensors, sizes, "reference")
    assert chosen(tensors, sizes, "triton") == wanted
    monkeypatch.setattr(triton_forward._block_topk_tuned, "configs", [triton.Config({"BJ": 16})])
    assert chosen(tensors, sizes, "triton") == wanted


@pytest.mark.slow
def test_causality_is_token_by_token_inside_blocks():
    """No gradient reaches a token after the query; in compression, a block that ends after it."""
    tensors = {name: x.float().to(DEVICE).requires_grad_() for name, x in inputs(1, 12).items()}
    out = call(**tensors, backend="triton")
    for t in (0, 3, 6):
        names = ("v_slc", "v_win", "v_cmp")
        found = torch.autograd.grad(out[0, t].sum(), [tensors[name] for name in names], retain_graph=True)
        reached = {name: x.abs().sum((0, 2, 3)) > 0 for name, x in zip(names, found, strict=True)}
        for name in ("v_slc", "v_win"):
            assert not reached[name][t + 1 :].any(), (name, t)
            assert reached[name][t], (name, t)
        assert torch.equal(reached["v_cmp"].cpu(), 2 * torch.arange(6) + 3 <= t), t


def test_refusals_say_why():
    tensors = inputs(1, 9)
    with pytest.raises(ValueError, match="needs bfloat16, float16 or float32, got float64"):
        call(**tensors, backend="triton")
    tensors = {name: x.float().to(DEVICE) for name, x in tensors.items()}
    with pytest.raises(ValueError, match="chooses at most 256 blocks, got n_select=300"):
        call(**tensors, backend="triton", n_select=300)


def test_groups_that_shared_memory_cannot_hold_are_refused():
    """128 · 256 channels in 16 bit compile for an H200, as do 256 · 128; more do not."""
    for heads, width, taken in ((128, 256, True), (256, 128, True), (200, 250, False), (512, 128, False)):
        *given, gates = arguments(inputs(1, 2, heads=heads, width=width), dtype=torch.float16)
        options = {"q_rotated": given[0], "sizes": Sizes(**SMALL)}
        reason = OPERATION.refusals(*given, gates, **options).get("triton")
        wanted = f"needs groups of query heads.* got {heads} heads of {width} channels in 2 bytes"
        assert reason is None if taken else re.match(wanted, reason)


def test_a_group_is_the_query_heads_of_one_kv_head():
    *given, gates = arguments(inputs(1, 2, heads=512, kv_heads=4, width=128), dtype=torch.float16)
    reasons = OPERATION.refusals(*given, gates, q_rotated=given[0], sizes=Sizes(**SMALL))
    assert reasons.get("triton") is None


def test_the_last_keys_under_the_window_will_do_for_one_query_alone():
    for queries in (1, 2):
        q, *rest = arguments(inputs(2, 50, queries=queries, near=9))
        reason = OPERATION.refusals(q, *rest, q_rotated=q, sizes=Sizes(**SMALL))["triton"]
        assert (reason is None) == (queries == 1), reason


def test_auto_takes_the_kernels_on_a_gpu_for_more_than_one_query():
    """On a CPU it takes Numba's; a decoding step reads views of caches, which the kernels would copy."""
    for queries, wanted in ((9, "triton" if DEVICE == "cuda" else "numba"), (1, "torch")):
        q, *rest = arguments(inputs(1, 9, queries=queries))
        assert OPERATION.choose("auto", q, *rest, q_rotated=q, sizes=Sizes(**SMALL)).name == wanted


def arguments(tensors: dict[str, Tensor], **options) -> list:
    """q, the pairs of the branches and the gates, as the operation takes them."""
    made = {
        name: x.to(**{"device": DEVICE, "dtype": torch.float32, **options}) for name, x in tensors.items()
    }
    pairs = [(made[f"k_{name}"], made[f"v_{name}"]) for name in ("cmp", "slc", "win")]
    return [made["q"], *pairs, made["gates"]]


def test_work_counts_visible_scores():
    """Without data: 64 tokens, 2 heads of width 16; l = 4, d = 2, n·l' = 16, w = 5."""
    given = arguments(inputs(3, 64), device="meta", dtype=torch.bfloat16)
    found = {(x.kernel, x.way): x for x in work(*given, **SMALL)}
    seen = {
        "compression": sum(len(range(0, t - 2, 2)) for t in range(64)),
        "selection": sum(t + 1 if t < 16 else 12 + t % 4 + 1 for t in range(64)),
        "window": sum(min(t + 1, 5) for t in range(64)),
    }
    for name, scores in seen.items():
        assert found[name, "forward"].flops == 3 * 2 * scores * 2 * 32
        assert found[name, "backward"].flops == 2.5 * found[name, "forward"].flops
    assert found["window", "forward"].bytes == 3 * 64 * (3 * 64 + 8)  # q, k and v, o; a log-sum-exp a head
    assert all(x.bytes > 0 for x in found.values())


@pytest.mark.gpu
@pytest.mark.slow
def test_long_runs_repeat_bit_for_bit():
    """Lists of the first block in several parts, all tiles; no order of additions changes."""
    sizes = {"block_size": 32, "stride": 16, "select_size": 64, "n_select": 16, "window": 512}
    tensors = inputs(1, 16_384, heads=32, kv_heads=2, width=128, value_width=128, blocks=1023)
    leaves = {name: x.to(DEVICE, torch.bfloat16).requires_grad_() for name, x in tensors.items()}
    runs = []
    for _ in range(3):
        out = call(**leaves, **sizes, backend="triton")
        runs.append([out, *torch.autograd.grad(out.float().square().sum(), list(leaves.values()))])
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))
    wanted = call(**leaves, **sizes, backend="torch")
    below(rmse_ratio(runs[0][0], wanted), 0.02)  # choices of equal importance may differ

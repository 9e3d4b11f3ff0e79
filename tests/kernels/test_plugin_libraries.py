"""Libraries that may be absent or broken, and flash-attn in its three versions, each by its published signature."""

import importlib
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import packed
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import attention, short_conv, timeline_attention, triton_common
from kernels.dispatch import never
from kernels.ops.attention import OPERATION as ATTENTION
from kernels.ops.timeline_attention import OPERATION as TIMELINES
from kernels.plugins import ABSENT, flash, look_up

# ruff: noqa: E704  a signature is a line


# flash-attn 2.7 and 2.8
def version_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
    causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None,
): ...  # fmt: skip


# hopper/flash_attn_interface.py at the tags v2.8.0, which returns a pair, and after v2.8.3
def version_3_pair(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
    softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
    sm_margin=0,
): ...  # fmt: skip


def version_3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
    softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
    sm_margin=0, return_attn_probs=False,
): ...  # fmt: skip


# The same file at v2.7.4: two arguments have no default.
def version_3_early(
    q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k, softmax_scale=None,
    causal=False, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), sink_token_length=0,
    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0,
): ...  # fmt: skip


# flash-attn-4 4.0.0b4 and 4.0.0b36
def version_4_beta(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None,
    seqused_k=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
    learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None,
    aux_tensors=None, return_lse=False,
): ...  # fmt: skip


def version_4(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
    softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
    num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
    block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None,
    seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False,
    gather_bwd_token_chunk=None,
): ...  # fmt: skip


MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
# Signature -> its version, and whether it returns a pair.
PUBLISHED = {
    version_2: (2, False),
    version_3_pair: (3, True),
    version_3: (3, False),
    version_4_beta: (4, True),
    version_4: (4, True),
}


class Library:
    """A version of flash-attn: it takes what its signature takes, and computes what its documentation says."""

    def __init__(self, signature: Callable) -> None:
        self.number, self.pair = PUBLISHED.get(signature, (3, True))
        self.__signature__ = inspect.signature(signature)
        self.called: list[dict] = []

    def __call__(self, *values, **words):
        bound = self.__signature__.bind(*values, **words)
        bound.apply_defaults()
        given = bound.arguments
        self.called.append(given)
        changed = {
            name
            for name, one in self.__signature__.parameters.items()
            if one.default is not one.empty and name not in flash.WORDS and given[name] != one.default
        }
        assert not changed, f"{changed} have other values than their defaults"
        ends = zip(*(itertools.pairwise(given[f"cu_seqlens_{x}"].tolist()) for x in "qk"), strict=True)
        parts = []
        for (q0, q1), (k0, k1) in ends:
            assert q1 - q0 <= given["max_seqlen_q"]
            assert k1 - k0 <= given["max_seqlen_k"]
            parts.append(self._attend(given, given["q"][q0:q1], given["k"][k0:k1], given["v"][k0:k1]))
        out = torch.cat(parts)
        return (out, out.new_zeros(out.shape[:2])) if self.pair else out

    def _attend(self, given: dict, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Query i stands at i + Tk − Tq and sees the keys from `left` before it to `right` after it.
        offset = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
        left, right = self._sides(*given["window_size"])
        seen = torch.ones_like(offset, dtype=torch.bool)
        if given["causal"]:
            right = 0 if right is None else min(right, 0)
        if left is not None:
            seen &= offset >= -left
        if right is not None:
            seen &= offset <= right
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        options = {"attn_mask": seen, "scale": given["softmax_scale"], "enable_gqa": len(q) != len(k)}
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(0, 1)

    def _sides(self, left: int | None, right: int | None) -> tuple[int | None, int | None]:
        """The window: −1 is no limit in versions 2 and 3; in 4 None is, and a single −1 is a number like any other."""
        if self.number == 4:
            return left, right
        return (*(None if x == -1 else x for x in (left, right)),)


@pytest.fixture(autouse=True)
def looked_up() -> Iterator[None]:
    """Nothing is remembered from one test to the next."""
    look_up.cache_clear()
    yield
    look_up.cache_clear()


@pytest.fixture
def a_gpu(monkeypatch) -> Callable[[int], None]:
    """Pretend a GPU of a major compute capability."""

    def pretend(major: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, 0))

    pretend(9)
    return pretend


@pytest.fixture
def install(monkeypatch, a_gpu) -> Callable[..., Library]:
    """Install a version of flash-attn as modules of this process."""
    for module in MODULES.values():
        monkeypatch.setitem(sys.modules, module, None)  # whatever is installed here, it is not

    def put(signature: Callable, number: int | None = None) -> Library:
        library = Library(signature)
        module = MODULES[library.number if number is None else number]
        made = ModuleType(module)
        made.flash_attn_varlen_func = library
        monkeypatch.setitem(sys.modules, module, made)
        if module == MODULES[4]:
            monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
        return library

    return put


def inputs(kv_heads: int = 4, queries: int = 7, keys: int = 7, batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((batch, queries, 4, 8), (batch, keys, kv_heads, 8), (batch, keys, kv_heads, 8))
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)


CALLS = {
    "causal": (inputs(), {}),
    "all keys": (inputs(), {"causal": False}),
    "window": (inputs(), {"window": 3}),
    "window of one": (inputs(), {"window": 1}),
    "grouped heads": (inputs(kv_heads=2), {}),
    "fewer queries": (inputs(queries=3), {}),
    "fewer queries, window": (inputs(queries=3), {"window": 4}),
    "fewer queries, all keys": (inputs(kv_heads=1, queries=3), {"causal": False}),
    "scale": (inputs(), {"scale": 0.3}),
    "packed": (inputs(batch=1, queries=9, keys=9), {"cu_seqlens": packed(4, 5)}),
    "packed, window": (inputs(batch=1, queries=9, keys=9), {"cu_seqlens": packed(1, 8), "window": 2}),
}


@pytest.mark.parametrize("signature", PUBLISHED)
@pytest.mark.parametrize("call", CALLS)
def test_every_version_of_flash_attn_computes_the_attention_that_is_asked_for(install, signature, call):
    library = install(signature)
    tensors, options = CALLS[call]
    with ATTENTION.override("flash_attn", refuses=never):
        found = attention(*tensors, **options, backend="flash_attn")
    assert len(library.called) == 1
    torch.testing.assert_close(found, attention(*tensors, **options, backend="reference"))


@pytest.mark.parametrize("signature", PUBLISHED)
def test_every_version_of_flash_attn_serves_timelines(install, signature):
    library = install(signature)
    q, k, v = inputs(batch=1, queries=12, keys=12)
    assignment = torch.arange(48).view(1, 12, 4) % 3
    options = {"n_timelines": 4, "rope_base": 1e4}  # one stays empty
    with TIMELINES.override("flash_attn", refuses=never):
        found = timeline_attention(q, k, v, assignment, **options, backend="flash_attn")
    assert library.called
    torch.testing.assert_close(found, timeline_attention(q, k, v, assignment, **options, backend="reference"))


@pytest.mark.parametrize("signature", PUBLISHED)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_flash_attn_repeat_where_pytorch_is_told_that_all_have_to(
    install, signature, deterministic, monkeypatch
):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    library = install(signature)
    with ATTENTION.override("flash_attn", refuses=never):
        attention(*inputs(), backend="flash_attn")
    assert library.called[0]["deterministic"] is deterministic


@pytest.mark.parametrize(
    ("installed", "major", "width", "served"),
    [
        ((2, 3, 4), 8, 64, 3),  # a version's GPUs, and the fastest of those that serve one
        ((2, 3, 4), 9, 64, 3),
        ((2, 3, 4), 10, 64, 4),
        ((2, 3, 4), 12, 64, 4),
        ((2, 4), 8, 64, 2),
        ((2, 4), 9, 64, 4),
        ((2, 4), 10, 192, 2),
        ((4,), 9, 192, 4),
        ((4,), 10, 256, 4),
        ((4,), 10, 192, "needs a head width of 256 or at most 128, got 192"),
        ((4,), 8, 64, "flash-attn 4 has no kernels for compute capability 8"),
        ((3,), 10, 64, "flash-attn 3 has no kernels for compute capability 10"),
        ((2, 3, 4), 7, 64, "flash-attn 2 has no kernels for compute capability 7"),
        ((), 9, 64, "flash-attn is not installed (pip install flash-attn"),
    ],
)
def test_the_version_that_is_made_for_a_gpu_serves_it(install, a_gpu, installed, major, width, served):
    a_gpu(major)
    # 4 first: it puts an empty package around itself.
    signatures = {2: version_2, 3: version_3, 4: version_4}
    libraries = {number: install(signatures[number]) for number in sorted(installed, reverse=True)}
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 2, width, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        why = flash.refuses(q, k, v)
    if isinstance(served, str):
        assert served in why
        return
    assert why is None
    with ATTENTION.override("flash_attn", refuses=never):
        attention(*(torch.zeros(1, 2, 2, width) for _ in range(3)), backend="flash_attn")
    assert [number for number, library in libraries.items() if library.called] == [served]


def test_a_release_that_takes_other_arguments_is_refused(install):
    install(version_3_early)
    why = flash.unusable(torch.device("cuda"))
    assert "flash-attn 3" in why
    assert "missing a required argument: 'seqused_q'" in why


BROKEN = {
    "2 without its compiled module": (
        {"flash_attn/__init__.py": "import flash_attn_2_cuda"},
        "flash-attn 2: flash_attn cannot be imported (ModuleNotFoundError: No module named 'flash_attn_2_cuda')",
    ),
    "2 that is built for another PyTorch": (
        {"flash_attn/__init__.py": "raise ImportError('undefined symbol: _ZN3c10\\nmore')"},
        "flash-attn 2: flash_attn cannot be imported (ImportError: undefined symbol: _ZN3c10)",
    ),
    "3 without its compiled module": (
        {"flash_attn_interface.py": "import flash_attn_3._C"},
        "flash-attn 3: flash_attn_interface cannot be imported (ModuleNotFoundError: No module named 'flash_attn_3')",
    ),
    "4 without what it needs": (
        {"flash_attn/cute/__init__.py": "import cutlass_that_is_not_there"},
        "flash-attn 4: flash_attn.cute cannot be imported (ModuleNotFoundError: No module named "
        "'cutlass_that_is_not_there')",
    ),
    "4 in a broken 2": (
        {"flash_attn/__init__.py": "import flash_attn_2_cuda", "flash_attn/cute/__init__.py": ""},
        "flash-attn 2: flash_attn cannot be imported (ModuleNotFoundError: No module named 'flash_attn_2_cuda')",
    ),
    "an empty folder of that name": ({"flash_attn/notes.txt": ""}, flash.NOT_INSTALLED),
    "a package of another content": (
        {"flash_attn/__init__.py": ""},
        "flash-attn 2: flash_attn has no flash_attn_varlen_func",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_flash_attn_that_cannot_be_used_says_why(tmp_path, monkeypatch, a_gpu, kind):
    files, says = BROKEN[kind]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for module in [name for name in sys.modules if name.startswith("flash_attn")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert flash.unusable(torch.device("cuda")) == says
        with FakeTensorMode(), pytest.raises(ValueError, match="cannot serve this call: flash-attn"):
            attention(
                *(torch.empty(1, 2, 2, 8, dtype=torch.bfloat16, device="cuda") for _ in range(3)),
                backend="flash_attn",
            )
    finally:
        for module in [name for name in sys.modules if name.startswith("flash_attn")]:
            del sys.modules[module]


def test_a_library_that_is_looked_for_is_imported_once(tmp_path, monkeypatch):
    (tmp_path / "breaks_slowly.py").write_text(
        f"open({str(tmp_path / 'imports')!r}, 'a').write('once\\n')\nimport nothing_of_that_name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(3):
        assert "nothing_of_that_name" in look_up("breaks_slowly", "f")[1]
    assert (tmp_path / "imports").read_text() == "once\n"


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("torch", "add", True),
        ("torch", None, True),
        ("torch", "no_such_function", "has no no_such_function"),
        ("torch.no_such_module", "f", ABSENT),
        ("no_such_library", None, ABSENT),
        ("no_such_library.part", "f", ABSENT),
    ],
)
def test_what_is_there_is_found_and_what_is_not_has_a_reason(module, name, found):
    function, why = look_up(module, name)
    assert (function is not None, why) == ((True, None) if found is True else (False, found))


@pytest.mark.parametrize(
    "error", [ImportError("libtriton.so: cannot open"), ModuleNotFoundError("No module")]
)
def test_a_triton_that_cannot_be_imported_is_refused_with_its_reason(monkeypatch, error):
    found = importlib.import_module

    def broken(name: str, *more):
        if name == "triton":
            raise error
        return found(name, *more)

    monkeypatch.setattr(importlib, "import_module", broken)
    triton_common._fault.cache_clear()
    try:
        assert not triton_common.interpreted()
        with pytest.raises(ValueError, match=f"triton cannot be imported \\({error}\\)"):
            short_conv(torch.zeros(1, 4, 2), torch.zeros(2, 3), backend="triton")
    finally:
        triton_common._fault.cache_clear()


@pytest.mark.slow
def test_no_library_is_imported_before_it_is_needed(tmp_path):
    for name in ("flash_attn", "flash_attn_interface", "fla", "liger_kernel", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__name__} is imported at the start')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch; torch.version.cuda = '13.0'\n"
        "import kernels, zoo, experiments.bench.peers as peers\n"
        "peers.unavailable(torch.device('cpu'))\n"
        "assert 'torch.nn.attention.varlen' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

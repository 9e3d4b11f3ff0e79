"""What Triton and PyTorch are told of a GPU that is not there; code that is translated once for all that share it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import triton
from triton.runtime import driver

from experiments.bench.static import translate
from experiments.bench.static.fake_gpu import use_fake_gpu
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.specialization import Specialised
from experiments.bench.static.translate import Binary, Translator


def test_architectures_are_those_that_the_compiler_knows_these_gpus_by():
    """Hopper is sm_90, Ampere's A100 sm_80."""
    assert {name: gpu.sm for name, gpu in GPUS.items()} == {"H200": 90, "H100": 90, "A100": 80}


@pytest.mark.parametrize("name", list(GPUS))
def test_a_fake_gpu_answers_with_its_sizes_as_long_as_it_is_in_use(name: str):
    gpu, before = GPUS[name], torch.cuda.device_count()
    with use_fake_gpu(gpu):
        cuda, active = torch.cuda, driver.active
        assert (cuda.is_available(), cuda.device_count(), cuda.current_device()) == (True, 1, 0)
        assert (cuda.get_device_name(0), cuda.get_device_capability(0)) == (gpu.name, gpu.capability)
        told = cuda.get_device_properties(0)
        assert (told.name, (told.major, told.minor)) == (gpu.name, gpu.capability)
        assert told.multi_processor_count == gpu.multiprocessors
        assert told.shared_memory_per_block_optin == gpu.program_shared
        cuda.synchronize()
        with cuda.device(0):
            pass
        assert active.get_current_target() == triton.backends.compiler.GPUTarget("cuda", gpu.sm, 32)
        assert (active.get_current_device(), active.get_current_stream(0), active.is_active()) == (0, 0, True)
        assert active.get_active_torch_device() == torch.device("cpu")
        assert active.get_device_interface() is cuda
        assert active.utils.get_device_properties(0) == {
            "max_shared_mem": gpu.program_shared,
            "multiprocessor_count": gpu.multiprocessors,
            "max_num_regs": gpu.registers,
            "warpSize": 32,
        }
    assert torch.cuda.device_count() == before


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """A pretended compiler of three stages; the text of a source is its layout, and what LLVM was given is listed."""
    translated: list[str] = []

    def compile(source, target, options):
        assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
        assert triton.knobs.cache.dir != before, "Triton's own cache is not filled"
        text = source.hash()
        if text == "broken":
            raise RuntimeError("it does not compile")

        def llvm(module, metadata):
            translated.append(module)
            return f"llvm of {module}"

        stages = {"ttgir": lambda module, metadata: f"{text} laid out", "llir": llvm}
        assert triton.knobs.runtime.add_stages_inspection_hook() == ("", "")
        triton.knobs.runtime.add_stages_inspection_hook(None, stages)
        module = stages["llir"](stages["ttgir"](f"ttir with {options['num_stages']} stages", {}), {})
        return SimpleNamespace(asm={"cubin": module.encode()}, metadata=SimpleNamespace(shared=512))

    before = triton.knobs.cache.dir
    monkeypatch.setattr(triton, "compile", compile)
    return translated


def launch(text: str, stages: int) -> Specialised:
    return Specialised(SimpleNamespace(hash=lambda: text), {"num_stages": stages}, {})


def test_configurations_that_come_to_the_same_layout_share_a_binary_but_not_their_code(compiled: list[str]):
    make, hook = Translator(90), triton.knobs.runtime.add_stages_inspection_hook
    found = [make(launch("a", 1)), make(launch("a", 2)), make(launch("b", 2))]
    a, b = (Binary(f"llvm of {text} laid out".encode(), 512) for text in "ab")
    assert found == [("ttir with 1 stages", a), ("ttir with 2 stages", a), ("ttir with 2 stages", b)]
    assert compiled == ["a laid out", "b laid out"]
    assert triton.knobs.runtime.add_stages_inspection_hook == hook
    assert Translator(90)(launch("a", 1)) == found[0]
    assert len(compiled) == 3, "another translator has its own"


def test_what_the_compiler_raises_is_raised_and_leaves_nothing_behind(compiled: list[str]):
    make, before = Translator(90), (triton.knobs.runtime.add_stages_inspection_hook, triton.knobs.cache.dir)
    with pytest.raises(RuntimeError, match="does not compile"):
        make(launch("broken", 1))
    assert (triton.knobs.runtime.add_stages_inspection_hook, triton.knobs.cache.dir) == before
    assert make._binaries == {}
    assert translate._after(lambda module: None, lambda module, metadata: (module, metadata))(1, 2) == (1, 2)

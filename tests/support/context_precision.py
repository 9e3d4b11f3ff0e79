"""Mixers in shards in the precisions and by the kernels of a GPU, as far as a CPU can run them."""

from collections.abc import Callable

import torch
from torch import nn

from support.context_cases import Errors, context, layouts, module_errors
from support.contract_cases import WIDTH, Case, build, cases

TRITON = ("gated_conv", "gsa-selected", "hypergraph", "kda", "mesanet", "mom", "nsa", "path_fox")
"""Mixers whose operations have a Triton form."""


def errors(triton: bool) -> dict[str, Errors]:
    """Errors of documents in fp32: by Triton's kernels, or else under bf16 autocast; to be run on ranks."""
    found = {}
    for case in cases():
        name = str(case).removeprefix("mixer-")
        if case.kind == "mixer" and (name in TRITON if triton else not case.variant):
            found[name] = _errors(case, triton)
    return found


def _errors(case: Case, triton: bool) -> Errors:
    config = case.config()
    config.backend = "triton" if triton else "auto"
    mixer = build(config, dtype=torch.float32).train().layers[0].mixer
    ctx = context(layouts()["documents"])
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(*ctx.positions.shape, WIDTH, generator=generator)
    run = mixer if triton else _autocast(mixer)
    return module_errors(mixer, run, x, ctx, None, whole=run)


def _autocast(module: nn.Module) -> Callable:
    """The module's forward under bf16 autocast; its backward is outside, as in training."""

    def run(x, ctx):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x, ctx)

    return run

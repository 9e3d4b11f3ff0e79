"""`model.backend` reaches every operation, in whole sequences and in decoding."""

import dataclasses

import pytest
import torch
from support.contract_cases import VARIANTS, Case, build, cases, tokens

from kernels.dispatch import Operation

# The operation that a mixer is made of; a block of a person's own may have none.
SERVED = {
    "attention": "attention",
    "gated_conv": "short_conv",
    "hypergraph": "timeline_attention",
    "kda": "delta_rule",
    "mesanet": "mesa",
    "mla": "attention",
    "mom": "memory_mixture",
    "nsa": "nsa_attention",
}


@pytest.fixture
def chosen(monkeypatch):
    """(operation, the form that served it) of every call."""
    seen, choose = set(), Operation.choose

    def recording(self, *args, **options):
        backend = choose(self, *args, **options)
        seen.add((self.name, backend.name))
        return backend

    monkeypatch.setattr(Operation, "choose", recording)
    return seen


def model_of(case: Case, backend: str):
    return build(dataclasses.replace(case.config(), backend=backend)).eval()


def decoded(model) -> torch.Tensor:
    batch, state, steps = tokens(2, 6), model.init_state(2), []
    for t in range(batch.shape[1]):
        step, state = model.step(batch[:, t], state)
        steps.append(step)
    return torch.stack(steps, dim=1)


@pytest.mark.parametrize("case", cases(), ids=str)
@torch.no_grad()
def test_the_reference_serves_every_operation(case, chosen):
    model = model_of(case, "reference")
    logits = decoded(model)
    whole, _ = model(tokens(2, 6))
    assert {form for _, form in chosen} <= {"reference"}, chosen
    operations = {name for name, _ in chosen}
    wanted = "attention" if case.kind != "mixer" else SERVED.get(case.name)
    assert wanted is None or wanted in operations
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-9)
    chosen.clear()
    model_of(case, "auto")(tokens(2, 6))
    assert {name for name, _ in chosen} <= operations  # a mixer may also do without any


# Forms for packed sequences serve no step: a CPU, which has none of them, decodes as it does without a name.
@pytest.mark.parametrize("backend", ["varlen", "flash_attn"])
@pytest.mark.parametrize(
    ("name", "variant"), [("attention", ""), ("mla", ""), ("gsa", ""), ("path_fox", "neither")]
)
@torch.no_grad()
def test_packed_forms_leave_decoding_to_auto(name, variant, backend, monkeypatch):
    neither = {"householder": False, "forget_gate": False}
    monkeypatch.setitem(VARIANTS, "path_fox", {**VARIANTS["path_fox"], "neither": neither})
    case = Case("mixer", name, variant)
    torch.testing.assert_close(decoded(model_of(case, backend)), decoded(model_of(case, "auto")))

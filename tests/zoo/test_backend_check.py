"""`model.backend` reaches every operation; one that serves no call is refused before the model computes."""

import dataclasses

import pytest
import torch
from support.contract_cases import SEQ_LEN, VARIANTS, VOCAB, Case, build, cases, defaults_first, tokens

from kernels.dispatch import Operation, Unserved, registered_backends
from zoo import LanguageModel, ModelConfig
from zoo.backends import check_backend
from zoo.context import Context
from zoo.cost import flops_per_token
from zoo.errors import UserError
from zoo.interfaces import set_step
from zoo.model import on_meta

CPU = torch.device("cpu")
KERNELS = ("varlen", "flash_attn", "triton", "numba")
WAYS = {
    "fp32": {},
    "bf16": {"half": True},
    "packed": {"packed": True},
    "decoding": {"uses": ("decoding",)},
    "a finished run": {"uses": ("training", "scoring")},
}


@pytest.fixture
def by_torch(monkeypatch) -> None:
    """Every operation asks the backend that is named, and is computed by PyTorch's form."""
    choose = Operation.choose

    def asked(self: Operation, backend: str, *given, **options):
        choose(self, backend, *given, **options)
        return choose(self, "auto" if backend == "auto" else "torch", *given, **options)

    monkeypatch.setattr(Operation, "choose", asked)


def refusal(config: ModelConfig, **how) -> str | None:
    """What is told before a model computes."""
    try:
        check_backend(config, seq_len=SEQ_LEN, **how)
    except UserError as error:
        return str(error)
    return None


def steps(model: LanguageModel, way: str) -> None:
    """The first steps of a use of a model."""
    packed = way == "packed"
    if way == "decoding":
        set_step(model, 10**6)
    batch = tokens(1 if packed else 2, SEQ_LEN)
    if way == "decoding":
        with torch.no_grad():
            _, state = model.eval().extend(batch, model.init_state(2, capacity=SEQ_LEN + 1))
            model.step(batch[:, 0], state)
        return
    ends = torch.tensor([0, 5, SEQ_LEN], dtype=torch.int32) if packed else None
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "bf16"):
        for step in (0, 10**6) if way != "a finished run" else (10**6,):
            set_step(model, step)
            model.train()(batch, Context.of(batch, ends))
            with torch.no_grad():
                model.eval()(batch, Context.of(batch, ends))


EACH = [
    pytest.param(case, way, marks=[pytest.mark.long] if case.variant or more else [])
    for case in cases()
    for more, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("case", "way"), EACH, ids=str)
def test_what_the_first_step_would_refuse_is_refused_before_it(case: Case, way: str, by_torch):
    for backend in registered_backends() if way == "fp32" else KERNELS:
        config = dataclasses.replace(case.config(), backend=backend)
        refused, told = refusal(config, device=CPU, **WAYS[way]), None
        try:
            steps(LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN), way)
        except Unserved as error:
            told = str(error)
        assert (refused is None) == (told is None), f"{backend}: {refused} / {told}"
        if told is not None:
            assert f"model.backend={backend}" in refused
            # Elsewhere another operation may be the first to be refused.
            assert way not in ("fp32", "packed") or told.partition("; those that can")[0] in refused
        assert backend not in ("torch", "reference") or refused is None


@pytest.mark.parametrize("backend", KERNELS)
@defaults_first
def test_for_another_machine_only_operations_without_such_a_form_are_refused(case: Case, backend: str):
    config = dataclasses.replace(case.config(), backend=backend)
    elsewhere, here = (refusal(config, device=device) for device in (None, CPU))
    assert elsewhere is None or f"has no backend {backend!r}" in elsewhere
    assert elsewhere is None or here is not None


@pytest.mark.parametrize("backend", KERNELS)
def test_costs_do_not_depend_on_the_kernels_that_compute(backend: str):
    """They are counted without data, which kernels need."""
    auto = Case("mixer", "attention").config()
    models = [
        on_meta(dataclasses.replace(auto, backend=name), vocab_size=VOCAB, seq_len=SEQ_LEN)
        for name in ("auto", backend)
    ]
    first, second = (flops_per_token(model, SEQ_LEN, backward=True) for model in models)
    assert first == second > 0


def test_auto_is_never_refused_and_asks_nothing(monkeypatch):
    monkeypatch.setattr(Operation, "choose", None)
    check_backend(Case("mixer", "attention").config(), seq_len=SEQ_LEN, device=CPU)


def test_operations_are_as_before_after_a_rehearsal():
    before = [dict(operation._backends) for operation in Operation.every]
    for backend in ("flash_attn", "torch"):
        config = dataclasses.replace(Case("mixer", "attention").config(), backend=backend)
        told = refusal(config, device=CPU, remedy="do something else")
        assert told is None or told.endswith("; do something else")
    assert [operation._backends for operation in Operation.every] == before


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

"""What a model costs, in a pass and for a token of a fixed state, against closed forms and a counter."""

import dataclasses
from collections.abc import Collection

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.autograd import FORMULAS, flop_counter
from zoo import Context, Dims, LanguageModel, ModelConfig, cost, registry
from zoo.config import architecture_of, from_dict
from zoo.model import Layer, on_meta

D, LAYERS, VOCAB = 64, 4, 512


def config(pattern: str, **options) -> ModelConfig:
    return ModelConfig(pattern=pattern, depth=LAYERS, d_model=D, n_heads=4, **options)


def matmul_parameters(model: LanguageModel) -> int:
    """Parameters that multiply every token: the layers' matrices and the head, tied or not."""
    layers = sum(p.numel() for p in model.layers.parameters() if p.dim() == 2)
    return layers + VOCAB * D


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "length", "tied"),
    [("F", 64, True), ("F", 3000, False), ("S", 60, False), ("S", 3000, True), ("SSSF", 512, True)],
)
def test_flops_are_the_closed_form(pattern, length, tied):
    """2 a parameter of a product, and 4·D a score entry: T of them in F, T/6 in S."""
    model = on_meta(config(pattern, tie_embeddings=tied), vocab_size=VOCAB, seq_len=length)
    entries = sum(length / 6 if letter == "S" else length for letter in model.letters)
    wanted = 2 * matmul_parameters(model) + 4 * D * entries
    assert cost.flops_per_token(model, length) == pytest.approx(wanted, rel=0.01)
    assert cost.flops_per_token(model, length, backward=True) == pytest.approx(3 * wanted, rel=0.01)


def test_reference_flops():
    """The reference model at its 512 tokens: 2·N + 4·T·D a layer."""
    whole = ModelConfig(pattern="F", depth=14, d_model=768, n_heads=12)
    model = on_meta(whole, vocab_size=50257, seq_len=512)
    gains = (2 * 14 + 1) * 768
    wanted = 2 * (137_710_080 - gains) + 4 * 512 * 768 * 14
    assert cost.flops_per_token(model, 512) == pytest.approx(wanted, rel=0.001)


def counted(model: LanguageModel, batch: Tensor, *, backward: bool) -> float:
    """FLOPs a token that the counter sees while the model runs on this machine."""
    with flop_counter() as counter:
        logits, aux = model(batch, Context.of(batch))
        if backward:
            (F.cross_entropy(logits[0], batch[0]) + model.aux_loss(aux)).backward()
    return counter.get_total_flops() / batch.numel()


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("length", [96, 301])
def test_a_running_dense_model_is_counted_the_same(length, backward):
    model = LanguageModel(config("F"), vocab_size=VOCAB, seq_len=length)
    meta = on_meta(model.config, vocab_size=VOCAB, seq_len=length)
    wanted = counted(model, tokens(1, length), backward=backward)
    assert cost.flops_per_token(meta, length, backward=backward) == pytest.approx(wanted, rel=0.01)
    assert cost.flops_per_token(model, length, backward=backward) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("letter", sorted(registry.mixer_by_letter()))
@pytest.mark.slow
def test_every_operator_is_counted_by_a_formula_of_ours(letter):
    model = on_meta(config(letter), vocab_size=VOCAB, seq_len=64)
    operators = cost.flops_by_operator(model, 64, backward=True)
    assert operators
    theirs = [operator for operator in operators if not str(operator).startswith("archzoo.")]
    assert set(theirs) <= set(FORMULAS)


def test_counting_leaves_no_gradients_behind():
    model = LanguageModel(config("SF"), vocab_size=VOCAB, seq_len=32)
    cost.flops_per_token(model, 32, backward=True)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("length", [1, 100, 8192])
def test_a_dense_state_is_its_keys_and_values(length):
    for kv_heads in (4, 1):
        options = config("F")
        options.mixers.attention.n_kv_heads = kv_heads
        model = on_meta(options, vocab_size=VOCAB, seq_len=32)
        assert cost.state_bytes(model, length) == LAYERS * 2 * length * kv_heads * 16 * 4


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4), (torch.float64, 8)], ids=str
)
def test_what_a_token_carries_follows_the_dtype_of_the_weights(dtype, size):
    model = LanguageModel(config("F"), vocab_size=VOCAB, seq_len=32).to(dtype)
    assert cost.stream_bytes(model) == D * size


def test_any_kind_of_state_is_counted():
    """Tensors inside lists, dicts and dataclasses; what cannot be counted is refused, not free."""

    @dataclasses.dataclass
    class State:
        memory: torch.Tensor
        more: dict
        steps: int = 0
        none: object = None

    mixer = Layer(
        config("F"), architecture_of(config("F")), Dims(D, 4, seq_len=32, layer=0, depth=LAYERS)
    ).mixer
    tensor = torch.zeros(3, 5)
    assert mixer.state_bytes(State(tensor, {"a": [tensor, (tensor,)]})) == 3 * 60
    with pytest.raises(TypeError, match="nbytes"):
        mixer.state_bytes([tensor, object()])


def test_a_model_of_triton_kernels_costs_what_it_does_on_others():
    """They need data, and there is none where costs are counted."""
    counted = []
    for backend in ("auto", "triton"):
        model = on_meta(
            ModelConfig(pattern="K", depth=1, d_model=32, backend=backend), vocab_size=50, seq_len=16
        )
        counted.append((cost.parameters(model), cost.flops_per_token(model, 16)))
    assert counted[0] == counted[1]


class Uncounted(TorchDispatchMode):
    """The numbers that operators without a formula make or add up: two a multiply-add, views none."""

    def __init__(self, counted: Collection) -> None:
        super().__init__()
        self.counted, self.flops, self.closed = counted, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        given, made_now = ([x for x in tree_leaves(each) if isinstance(x, Tensor)] for each in (args, made))
        read = {x.untyped_storage()._cdata for x in given}
        if function.overloadpacket not in self.counted and any(
            x.untyped_storage()._cdata not in read for x in made_now
        ):
            sizes = [x.numel() for x in (*given, *made_now)]
            self.flops += max(sizes) * (2 if function.overloadpacket == torch.ops.aten.addcmul else 1)
            if function.namespace not in ("aten", "prims"):
                self.closed.add(str(function))
        return made


BLOCKS = [
    *({"pattern": letter} for letter in sorted(registry.mixer_by_letter())),
    *({"pattern": "F", "residual": {"name": name}} for name in sorted(registry.blocks("residual"))),
    *({"pattern": "F", "channel": {"name": name}} for name in sorted(registry.blocks("channel"))),
]


@pytest.mark.slow
@pytest.mark.parametrize("values", BLOCKS, ids=lambda values: "-".join(str(x) for x in values.values()))
@torch.no_grad()
def test_what_no_formula_counts_is_little_in_every_block(values):
    """Norms, gates, short convolutions, copies: under a hundredth of a layer's FLOPs at the reference width.

    A block with its work in elementwise operators would look cheap; it needs an operator with a formula.
    """
    length = 1024
    config = from_dict(ModelConfig, {"d_model": 768, "n_heads": 12, "depth": 2, **values})
    model = on_meta(config, vocab_size=8, seq_len=length).eval()
    counted = cost.flops_by_operator(model, length)
    batch = torch.zeros(1, length, dtype=torch.int64, device="meta")
    with Uncounted(counted) as rest:
        model(batch, Context.of(batch))
    assert 0 < rest.flops < 0.01 * length * sum(counted.values())
    assert not rest.closed, "nobody sees what these operators do; give them a formula"


@pytest.mark.parametrize("letter", ["C", "K", "M", "O"])
def test_neither_state_nor_work_grows(letter):
    model = on_meta(ModelConfig(pattern=letter), vocab_size=32, seq_len=1024)
    assert 0 < cost.state_bytes(model, 1024) == cost.state_bytes(model, 131_072)
    forward = [cost.flops_per_token(model, length) for length in (1024, 4096)]
    assert abs(forward[1] / forward[0] - 1) < 0.01

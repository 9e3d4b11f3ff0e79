"""`G`, gated sparse attention: its identities, its warm-up, how its indexer learns, and what it costs."""

import math

import pytest
import torch
from support.margins import below
from torch import Tensor

import kernels
import zoo
from zoo import Context, LanguageModel, ModelConfig
from zoo.interfaces import Dims, grouped_parameters, set_step
from zoo.mixers.gsa import GSA, GSAConfig, sizes
from zoo.modules.caches import join_states, select_sequences

WIDTH, HEADS, SEQ_LEN = 32, 4, 16


def mixer(seq_len: int = SEQ_LEN, dtype=torch.float64, seed: int = 0, **options) -> GSA:
    """A mixer whose weights are all far from 0, past its warm-up unless told otherwise."""
    made = GSA(GSAConfig(**{"warmup": 0, **options}), Dims(WIDTH, HEADS, seq_len, 0, 1))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name != "indexer.log_tau":
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made.to(dtype)


def inputs(batch: int, time: int, seed: int = 1, dtype=torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, WIDTH, generator=generator, dtype=dtype)


def run(made: GSA, x: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    return made(x, Context.of(x[..., 0], cu_seqlens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adaptive", "scores"),
    [("inverse", "sigmoid"), ("seed", "sigmoid"), ("none", "sigmoid"), ("none", "relu")],
)
@pytest.mark.parametrize("capacity", [0, 40])
@torch.no_grad()
def test_step_repeated_is_forward_while_keys_are_selected(adaptive, scores, capacity):
    made, x = mixer(adaptive=adaptive, scores=scores, k_base=3, k_max=5).eval(), inputs(2, 40)
    y, aux = run(made, x)
    assert aux == {}
    state = made.init_state(2, capacity=capacity, dtype=torch.float64)
    for t in range(40):
        step, state = made.extend(x[:, t : t + 1], state)
        below((step[:, 0] - y[:, t]).abs().max(), 1e-9, f"token {t}")


@torch.no_grad()
def test_decoding_reads_only_the_selected_rows():
    made, x = mixer(k_base=3, k_max=3, adaptive="none").eval(), inputs(1, 30)
    state = made.init_state(1, dtype=torch.float64)
    for t in range(29):
        _, state = made.extend(x[:, t : t + 1], state)
    q, k, w, bias = made.indexer(x, torch.arange(x.shape[1]))
    chosen = kernels.lightning_topk(q, k, w, bias, k=3)[0, -1].long()
    unread = torch.ones(29, dtype=torch.bool)
    unread[chosen[chosen < 29]] = False
    keys, values, _ = state.read()
    keys[:, :, unread], values[:, :, unread] = torch.nan, torch.nan
    step, _ = made.extend(x[:, -1:], state)
    torch.testing.assert_close(step[:, 0], run(made, x)[0][:, -1])


CHOICES = [(1, 4), (3, 1), (16, 3)]


@pytest.mark.parametrize(("share", "key_block"), CHOICES)
@torch.no_grad()
def test_shared_choices_of_blocks_decode_as_they_read_and_see_no_future(share, key_block):
    """Cut anywhere, in tiles too; sequences of a batch put together, and packed ones."""
    made, x = mixer(k_base=3, k_max=5, share=share, key_block=key_block).eval(), inputs(2, 40)
    whole, _ = run(made, x)
    for cuts in ([1] * 40, [7, 1, 1, 20, 1, 10], [3, 37]):
        state, found = made.init_state(2, dtype=torch.float64), []
        for part in x.split(cuts, 1):
            y, state = made.extend(part, state)
            found.append(y)
            state = join_states([select_sequences(state, torch.tensor([i])) for i in range(2)])
        below((torch.cat(found, 1) - whole).abs().max(), 1e-9, str(cuts))
    changed = x.clone()
    changed[:, 23:] += 1
    torch.testing.assert_close(run(made, changed)[0][:, :23], whole[:, :23], rtol=0, atol=1e-12)
    assert not torch.allclose(mixer(k_base=3, k_max=5).eval()(x, Context.of(x[..., 0]))[0], whole)
    together, _ = run(made, x[:1], torch.tensor([0, 17, 40], dtype=torch.int32))
    apart = torch.cat([run(made, part)[0] for part in x[:1].split([17, 23], 1)], 1)
    torch.testing.assert_close(together, apart)


@torch.no_grad()
def test_the_future_changes_nothing_while_keys_are_selected():
    made, x = mixer().eval(), inputs(2, 40)
    before, after = run(made, x)[0], x.clone()
    after[:, 23:] += 1
    torch.testing.assert_close(run(made, after)[0][:, :23], before[:, :23], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"warmup": 0}, {"warmup": 9}, {"scores": "relu", "adaptive": "none"}],
    ids=["selected", "dense", "relu"],
)
def test_top_k_passes_no_gradient_and_the_indexer_reads_a_detached_input(options):
    made, x = mixer(**options), inputs(2, 19).requires_grad_()
    y, aux = run(made, x)
    named = dict(made.named_parameters())
    indexer = {name for name in named if name.startswith("indexer.")}

    def reached(loss: Tensor) -> set[str]:
        grads = torch.autograd.grad(loss, [x, *named.values()], allow_unused=True, retain_graph=True)
        return {name for name, grad in zip(["x", *named], grads, strict=True) if grad is not None}

    assert reached(y.sum()) == {"x", *named} - indexer
    assert reached(aux["indexer_kl"]) == indexer


def test_relu_scores_are_those_of_deepseek():
    """I_ts = Σ_j w_tj/√H^I·ReLU(q_tj·k_s/√d_I), no bias, and a softmax of them without τ."""
    made, x = mixer(scores="relu", adaptive="none", k_base=3, index_rope=False), inputs(2, 19)
    part = made.indexer
    assert {name for name, _ in part.named_parameters()} == {
        "q_proj.weight",
        "k_proj.weight",
        "w_proj.weight",
    }
    q, k, w = (x @ p.weight.T for p in (part.q_proj, part.k_proj, part.w_proj))
    products = torch.einsum("bthd,bsd->bths", q.unflatten(-1, (part.heads, -1)), k)
    scores = torch.einsum("bth,bths->bts", w, products.relu()) / math.sqrt(part.heads * part.width)
    assert (scores < 0).any()
    hidden = torch.ones(19, 19, dtype=torch.bool).triu(1)
    own = torch.eye(19, dtype=torch.bool)
    best = (
        scores.masked_fill(hidden, -torch.inf)
        .masked_fill(own, torch.inf)
        .topk(3)
        .indices.sort(descending=True)
        .values
    )
    positions = torch.arange(19)
    chosen = kernels.lightning_topk(*part(x, positions), k=made.k, scores="relu")[..., :3].long()
    torch.testing.assert_close(*(scores[:, 2:].gather(-1, found[:, 2:]) for found in (chosen, best)))

    made.warmup.dense = True
    q, k, _ = made._qkv(x, positions)
    k = k.repeat_interleave(made.heads // made.kv_heads, 2)
    logits = torch.einsum("bthd,bshd->bhts", q, k) * made.width**-0.5
    p = logits.masked_fill(hidden, -torch.inf).softmax(-1).mean(1)
    said = scores.masked_fill(hidden, -torch.inf).log_softmax(-1)
    wanted = torch.where(hidden, 0, p * (p.log() - said)).sum(-1).mean()
    torch.testing.assert_close(run(made, x)[1]["indexer_kl"], wanted)


def test_sizes_follow_the_configured_length():
    def of(seq_len, **options):
        k = sizes(GSAConfig(**options), seq_len)
        return k.base, k.least, k.most

    assert of(131072) == (2048, 256, 4096)
    assert of(8192) == (1024, 128, 2048)
    assert of(128) == (16, 2, 32)
    assert of(5) == (1, 1, 2)
    assert of(128, k_base=40) == (40, 5, 80)
    made = mixer(seq_len=16)
    for time in (16, 64):
        index = made.indexer(inputs(1, time), torch.arange(time))
        assert kernels.lightning_topk(*index, k=made.k).shape[-1] == 4


def test_the_indexer_has_its_own_learning_rate_and_clipping_group():
    model = LanguageModel(ModelConfig(pattern="FG", depth=2, d_model=32), vocab_size=9, seq_len=64)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(parameter)]: group for parameter, group, _ in grouped_parameters(model)}
    for name, group in groups.items():
        wanted = ("indexer", 10.0) if ".indexer." in name else ("main", 1.0)
        assert (group.clip, group.lr_scale) == wanted, name


def dense(model) -> bool:
    return model.layers[0].mixer.warmup.dense


def small_model(**options) -> LanguageModel:
    config = ModelConfig(pattern="G", depth=1, d_model=16, n_heads=2)
    config.mixers.gsa = GSAConfig(**options)
    return LanguageModel(config, vocab_size=9, seq_len=16)


def test_the_warm_up_ends_after_its_steps_or_a_tenth_of_training():
    model = small_model()
    assert dense(model)
    for step, total, wanted in (
        (999, 0, True),
        (1000, 0, False),
        (999, 10**6, True),
        (1000, 10**6, False),
        (19, 200, True),
        (20, 200, False),
        (0, 9, False),
    ):
        set_step(model, step, total)
        assert dense(model) is wanted, (step, total)
    assert not dense(small_model(warmup=0))


def test_the_warm_up_is_part_of_the_checkpoint(tmp_path):
    model = small_model(warmup=30).eval()
    tokens = torch.arange(16)[None] % 9
    for step in (0, 29, 30):
        set_step(model, step, 5000)
        loaded = zoo.load(zoo.export(model, tmp_path / str(step)))
        assert dense(loaded) is dense(model) is (step < 30)
        assert torch.equal(loaded(tokens)[0], model(tokens)[0])


@pytest.mark.long
def test_a_compiled_model_follows_the_warm_up():
    model = small_model(warmup=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    tokens = torch.arange(16)[None] % 9
    outs = []
    for step in (0, 1):
        set_step(model, step)
        outs.append(compiled(tokens)[0])
        torch.testing.assert_close(outs[-1], model(tokens)[0])
    assert not torch.allclose(*outs)


def test_positions_enter_index_scores_as_distances():
    """Queries and keys turn alike: moved together nothing changes, and a token meets itself as if none turned."""
    made, x, t = mixer().indexer, inputs(1, 9), torch.arange(9)

    def products(positions: Tensor) -> Tensor:
        q, k, *_ = made(x, positions[None])
        return torch.einsum("bthd,bsd->bhts", q, k)

    at_zero, still = products(t), products(torch.zeros_like(t))
    torch.testing.assert_close(products(t + 7), at_zero)
    torch.testing.assert_close(at_zero.diagonal(dim1=2, dim2=3), still.diagonal(dim1=2, dim2=3))
    assert not torch.allclose(at_zero, still)

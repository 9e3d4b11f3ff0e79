"""What each residual scheme computes: coefficients and mixing by formula, identities, options, errors."""

import pytest
import torch
from support.contract_cases import SEQ_LEN, VOCAB, build, tokens
from support.margins import below

import kernels
from zoo import LanguageModel, ModelConfig, registry
from zoo.interfaces import Dims, Streams
from zoo.modules import RMSNorm
from zoo.probes.measure import chain_product, matrix_norms
from zoo.residuals.hyper_connections import HyperResidual, takes_step
from zoo.residuals.ohc import OHC, OHCConfig
from zoo.residuals.shc import SHC, SHCConfig

D, N = 6, 4
DIMS = Dims(D, 2, seq_len=8, layer=0, depth=3)
SCHEMES = ("hc", "identity", "mhc", "ohc", "shc")
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def random_residual(scheme: str, seed: int = 0, **options) -> HyperResidual:
    """One sub-block's scheme in fp64 with random parameters."""
    block = registry.get("residual", scheme)
    module = block.cls(block.config(**options), DIMS).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module


def streams(batch: int = 2, time: int = 5, n: int = N) -> torch.Tensor:
    return torch.randn(batch, time, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def config_with(scheme: str, pattern: str = "SF", **options) -> ModelConfig:
    config = ModelConfig(pattern=pattern, depth=3, d_model=32, n_heads=4)
    config.residual.name = scheme
    for key, value in options.items():
        setattr(getattr(config.residual, scheme), key, value)
    return config


@every_scheme
@torch.no_grad()
def test_a_sub_block_is_its_definition(scheme):
    """Every formula of zoo.residuals.hyper_connections for one token, with m = 0.1 as at step 0."""
    m = random_residual(scheme, **({"gain": None} if scheme in ("ohc", "shc") else {}))
    x = streams()
    y, coefficients = m.pre(x)
    z = torch.randn(2, 5, D, dtype=torch.float64)
    out = m.post(x, z, coefficients)
    token = x[1, 3]
    vec = token.flatten()
    hat = vec / (vec.square().mean() + 1e-6).sqrt()
    alpha = 0.1 * m.alpha
    pre = torch.sigmoid(alpha[0] * (m.phi_pre @ hat) + m.b_pre)
    post = 2 * torch.sigmoid(alpha[1] * (m.phi_post @ hat) + m.b_post)
    if scheme == "identity":
        res = torch.eye(N, dtype=torch.float64)
    elif scheme == "shc":
        raw = alpha[2] * (m.phi_res @ hat)
        rotations = [kernels.cayley(turn, backend="reference") for turn in m.turns]
        res = sum(w * q for w, q in zip(raw.softmax(0), rotations, strict=True))
    else:
        raw = (alpha[2] * (m.phi_res @ hat)).view(N, N) + m.b_res
        project = {"hc": lambda r: r, "mhc": kernels.sinkhorn, "ohc": kernels.cayley}[scheme]
        res = project(raw)
    for got, wanted in zip(coefficients, (pre, post, res), strict=True):
        torch.testing.assert_close(got[1, 3], wanted, rtol=0, atol=1e-7)
    torch.testing.assert_close(y[1, 3], pre @ token, rtol=0, atol=1e-6)
    torch.testing.assert_close(out[1, 3], res @ token + post[:, None] * z[1, 3], rtol=0, atol=1e-6)


@torch.no_grad()
def test_cayley_scale_and_alpha_scale_what_they_name():
    x = streams()
    scaled, plain = (random_residual("ohc", gain=None, cayley_scale=scale) for scale in (0.1, 1.0))
    plain.alpha[2] *= 0.1
    plain.b_res *= 0.1
    for got, wanted in zip(scaled(x), plain(x), strict=True):
        torch.testing.assert_close(got, wanted)
    one = x[:, :1]  # decoding's form
    for got, wanted in zip(scaled.step(one), plain.step(one), strict=True):
        torch.testing.assert_close(got, wanted)
    assert registry.get("residual", "ohc").cls(OHCConfig(alpha=0.3), DIMS).alpha.tolist() == pytest.approx(
        3 * [0.3]
    )


@torch.no_grad()
def test_shc_with_one_matrix_is_ohc_with_a_static_one():
    one = random_residual("shc", k=1)
    other = OHC(OHCConfig(), DIMS).double()
    for name in ("phi_pre", "phi_post", "b_pre", "b_post", "alpha"):
        getattr(other, name).copy_(getattr(one, name))
    other.b_res.copy_(one.turns[0])
    other.phi_res.zero_()
    x, z = streams(), torch.randn(2, 5, D, dtype=torch.float64)
    for got, wanted in zip(one(x), other(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(one.post(x, z, one(x)), other.post(x, z, other(x)), rtol=0, atol=1e-13)


@torch.no_grad()
def test_what_the_mixing_matrices_are():
    """ohc rotates; mhc averages, rows summing to 1; shc contracts and never expands; nothing bounds hc."""
    x = 10 * streams()
    res = {scheme: random_residual(scheme)(x).res for scheme in SCHEMES}
    eye = torch.eye(N, dtype=torch.float64)
    below((res["ohc"].mT @ res["ohc"] - eye).abs().max(), 1e-13)
    assert (res["mhc"] >= 0).all()
    torch.testing.assert_close(res["mhc"].sum(-1), torch.ones(2, 5, N, dtype=torch.float64))
    assert torch.linalg.svdvals(res["shc"]).max() <= 1 + 1e-13
    assert torch.linalg.svdvals(res["shc"]).min() < 1 - 1e-6
    assert torch.linalg.svdvals(res["hc"]).max() > 1.01


@every_scheme
@torch.no_grad()
def test_coefficients_are_every_tokens_own(scheme):
    m, x = random_residual(scheme), streams()
    whole = m(x)
    alone = m(x[1:, 3:4])
    for got, wanted in zip(alone, whole, strict=True):
        torch.testing.assert_close(got.expand(1, 1, *got.shape[2:]), wanted[1:, 3:4], rtol=0, atol=1e-14)


@every_scheme
def test_coefficients_are_fp32_under_autocast(scheme):
    m = random_residual(scheme).float()
    x = streams().float()
    wanted = m(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, got = m.pre(x)
        out = m.post(x, y.bfloat16(), got)
    assert y.dtype == out.dtype == torch.float32
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


OPTIONS = [
    ("hc", {"n_streams": 2}),
    ("mhc", {"n_streams": 3, "iters": 5}),
    ("ohc", {"readout": "learned"}),
    ("ohc", {"init": "seed", "n_streams": 5}),
    ("shc", {"k": 3, "factorise": 2, "readout": "learned"}),
    ("shc", {"k": 1, "factorise": 1, "expansion": "learned"}),
    ("ohc", {"inverse": "neumann", "neumann_terms": 3}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options"), OPTIONS, ids=str)
@torch.no_grad()
def test_decoding_with_streams_is_the_forward_pass(scheme, options):
    model = build(config_with(scheme, **options)).eval()
    batch = tokens(2, 12)
    logits, _ = model(batch)
    state = model.init_state(2)
    for t in range(batch.shape[1]):
        step, state = model.step(batch[:, t], state)
        torch.testing.assert_close(step, logits[:, t], rtol=0, atol=1e-9)


def test_the_streams_start_as_copies_and_are_read_as_a_mean():
    model = LanguageModel(config_with("ohc"), vocab_size=VOCAB, seq_len=SEQ_LEN)
    x = torch.randn(2, 5, 32)
    spread = model.streams.expand(x)
    assert spread.shape == (2, 5, 4, 32)
    assert all(torch.equal(spread[:, :, i], x) for i in range(4))
    torch.testing.assert_close(model.streams.collapse(torch.randn(2, 5, 4, 32)).shape, x.shape)
    torch.testing.assert_close(model.streams.collapse(spread), x)


@every_scheme
@pytest.mark.slow
def test_learned_expansion_is_a_gain_of_every_stream_and_channel(scheme):
    """x_i = g_i ⊙ e, which starts as the copies and has a gradient at the first step."""
    plain = LanguageModel(config_with(scheme), vocab_size=VOCAB, seq_len=SEQ_LEN)
    model = LanguageModel(config_with(scheme, expansion="learned"), vocab_size=VOCAB, seq_len=SEQ_LEN)
    batch, e = tokens(2, SEQ_LEN), torch.randn(2, 5, 32)
    assert torch.equal(model(batch)[0], plain(batch)[0])
    logits, _ = model(batch)
    (logits * torch.randn(logits.shape)).sum().backward()
    assert model.streams.expansion.grad.abs().min() > 0
    gains = torch.nn.init.normal_(model.streams.expansion)
    found = model.streams.expand(e)
    for i in range(N):
        assert torch.equal(found[:, :, i], gains[i] * e)
    assert found.is_contiguous()
    assert not torch.allclose(model(batch)[0], plain(batch)[0], atol=1e-2)


@torch.no_grad()
def test_a_neumann_series_is_the_inverse_of_ohc_up_to_its_last_power():
    """(I − A)·Σ (−A)^k over k = 0 … K, in a pass and while decoding."""
    x = streams()
    for terms in (1, 4):
        series, exact = (
            random_residual("ohc", gain=None, cayley_scale=0.2, inverse=inverse, neumann_terms=terms)
            for inverse in ("neumann", "exact")
        )
        kept = {}
        exact.project = lambda raw, kept=kept: kept.setdefault("raw", raw)
        exact(x)
        a = 0.2 * (kept["raw"] - kept["raw"].mT) / 2
        eye = torch.eye(N, dtype=torch.float64)
        wanted = (eye - a) @ sum(torch.linalg.matrix_power(-a, k) for k in range(terms + 1))
        torch.testing.assert_close(series(x).res, wanted, rtol=0, atol=1e-13)
        torch.testing.assert_close(series.step(x[:, :1]).res, wanted[:, :1], rtol=0, atol=1e-13)


def test_schemes_share_the_weights_of_the_plain_model_under_one_seed():
    plain = LanguageModel(config_with("add"), vocab_size=VOCAB, seq_len=SEQ_LEN).state_dict()
    for scheme in SCHEMES:
        state = LanguageModel(config_with(scheme), vocab_size=VOCAB, seq_len=SEQ_LEN).state_dict()
        assert all(torch.equal(state[name], value) for name, value in plain.items()), scheme


@pytest.mark.parametrize(
    ("scheme", "per_block"), [("hc", 24), ("identity", 8), ("mhc", 24), ("ohc", 24), ("shc", 10)]
)
def test_parameters_a_sub_block(scheme, per_block):
    """φ: nD columns for n + n + n² (or k) rows; biases, three α, and shc's k matrices."""
    module = random_residual(scheme)
    extra = {"shc": 2, "identity": 0}.get(scheme, 1) * N * N
    assert sum(p.numel() for p in module.parameters()) == per_block * N * D + 2 * N + 3 + extra


# Gains


def test_the_numbers_called_norm():
    """An orthogonal 4×4 matrix has an Amax of 2; a mixture of two rotations contracts."""
    hadamard = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    found = {name: value.tolist() for name, value in matrix_norms(hadamard).items()}
    assert found.pop("sigma") == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert found == pytest.approx({"sigma_max": 1, "sigma_min": 1, "amax": 2, "row_sum": 2}, abs=1e-6)
    signed = matrix_norms(torch.tensor([[1.0, -1.0], [0.0, 1.0]]))
    assert (signed["amax"].item(), signed["row_sum"].item()) == (1, 2)
    turn = kernels.cayley(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    below(matrix_norms((turn + turn.T) / 2)["sigma_max"], 1e-6)


@torch.no_grad()
def test_composites_over_depth():
    """Rotations keep every singular value 1; mixtures of rotations keep σ ≤ 1 and lose σ_min."""
    generator = torch.Generator().manual_seed(0)
    turns = 0.3 * torch.randn(60, 2, 4, 4, generator=generator, dtype=torch.float64)
    rotations = kernels.cayley(turns)
    one, mixed = matrix_norms(chain_product(rotations[:, 0])), matrix_norms(chain_product(rotations.mean(1)))
    below(abs(one["sigma_max"] - 1), 1e-12)
    below(abs(one["sigma_min"] - 1), 1e-12)
    assert mixed["sigma_max"] <= 1
    assert mixed["sigma_min"] < 0.2
    with pytest.raises(ValueError, match="at least one matrix"):
        chain_product([])


# Errors


def test_shc_starts_with_independent_small_turns():
    module = SHC(SHCConfig(), Dims(32, 4, seq_len=8, layer=0, depth=1))
    module.init_weights(torch.Generator().manual_seed(0))
    assert not torch.equal(module.turns[0], module.turns[1])
    assert abs(module.turns.std().item() / 0.01 - 1) < 0.3
    assert not module.phi_res.any()


@every_scheme
@pytest.mark.parametrize("n", [2, 3, 4])
@torch.no_grad()
def test_one_token_alone_is_the_token_in_its_sequence(scheme, n):
    """A few sequences decode by numbers, many by the operations on tensors."""
    m = random_residual(scheme, n_streams=n)
    for batch in (1, 3, 9):
        x, z = streams(batch, n=n), torch.randn(batch, 5, D, dtype=torch.float64)
        y, coefficients = m.pre(x)
        out = m.post(x, z, coefficients)
        for t in range(5):
            one, alone = m.pre(x[:, t : t + 1])
            for got, whole in zip(alone, coefficients, strict=True):
                torch.testing.assert_close(got, whole[:, t : t + 1])
            torch.testing.assert_close(one, y[:, t : t + 1])
            torch.testing.assert_close(m.post(x[:, t : t + 1], z[:, t : t + 1], alone), out[:, t : t + 1])


@pytest.mark.parametrize("scheme", ["add", *SCHEMES])
@torch.no_grad()
def test_the_layers_norm_may_be_part_of_reading(scheme):
    """A whole sequence and one token, which takes another way; the operation gets the norm's own gain and eps."""
    if scheme == "add":
        m, x = registry.get("residual", "add").cls(None, DIMS), 1e-3 * streams()[:, :, 0]
    else:
        m, x = random_residual(scheme), 1e-3 * streams()
    norm = RMSNorm(D, 0.1).double()
    norm.weight.copy_(torch.linspace(0.5, 2, D))
    for part in (x, x[:, :1]):
        (u, same, got), (y, wanted) = m.normed_pre(part, norm), m.pre(part)
        assert torch.equal(same, part)
        torch.testing.assert_close(u, norm(y))
        assert not torch.allclose(u, y)
        for a, b in zip(got or (), wanted or (), strict=True):
            assert torch.equal(a, b)


@every_scheme
@torch.no_grad()
def test_a_token_after_a_change_of_parameters_or_of_the_training_step_uses_the_new_ones(scheme):
    m, x = random_residual(scheme), streams(time=2)
    for change in (
        lambda: None,
        lambda: m.clock.set(4000, 0),
        *(lambda p=p: p.mul_(1.5) for p in m.parameters()),
    ):
        m.pre(x[:, :1])
        change()
        torch.testing.assert_close(m.pre(x[:, :1])[0], m.pre(x)[0][:, :1])


def test_numbers_stand_for_a_token_where_nobody_wants_its_gradient_or_another_backend():
    token = streams(time=1)
    with torch.no_grad():
        taken = [
            backend for backend in ("auto", "torch", "reference", "triton") if takes_step(token, backend)
        ]
        assert taken == ["auto", "torch"]
        assert not takes_step(streams(time=2), "auto")
    assert not takes_step(token, "auto")


def test_streams_that_carry_more_than_a_layer_has_are_refused(monkeypatch):
    """Or training would recompute every layer for nothing, and nobody would hear of it."""

    class Carrying(Streams):
        def carried(self) -> int:
            return 2

    monkeypatch.setattr(registry.get("residual", "add").cls, "streams", Carrying)
    with pytest.raises(TypeError, match=r"Carrying: a token carries 2 vectors .* define inside\(\) too"):
        LanguageModel(ModelConfig(), vocab_size=VOCAB, seq_len=SEQ_LEN)

"""Residual measures against products, decompositions and gradients written out here."""

import copy
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import VOCAB, build, tokens
from support.margins import above, below

from zoo import Context, LanguageModel, ModelConfig, UserError
from zoo.probes import ProbeEvent, probe_model
from zoo.probes.measure import Row
from zoo.probes.measures.streams import Mixing

BATCH, TIME = 2, 5
PARTS = ("mixer", "channel")
SCHEMES = ("add", "hc", "identity", "mhc", "ohc", "shc")
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def model_with(scheme: str, *, width: int = 8, n_streams: int = 3) -> LanguageModel:
    """Two layers in fp64, all weights random."""
    config = ModelConfig(pattern="FC", depth=2, d_model=width, n_heads=2)
    config.residual.name = scheme
    if scheme != "add":
        getattr(config.residual, scheme).n_streams = n_streams
    return build(config)


def walk(model: LanguageModel, batch: torch.Tensor, nudge=lambda place, x: x):
    """The forward pass by hand: ({(layer, part): (streams, coefficients)}, mean loss of the next tokens)."""
    x, seen = model.streams.expand(model.embedding(batch)), {}
    for i, layer in enumerate(model.layers):
        for part in PARTS:
            x = nudge((i, part), x)
            residual = getattr(layer, f"{part}_residual")
            y, c = residual.pre(x)
            seen[i, part] = x, c
            z, _ = getattr(layer, part)(getattr(layer, f"{part}_norm")(y), Context.of(batch))
            x = residual.post(x, z, c)
    seen[len(model.layers), "head"] = x, None
    logits = model.norm(model.streams.collapse(x)) @ model.embedding.weight.T
    return seen, F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def numbers(rows: list[Row]) -> dict[tuple, float]:
    """Values by (layer, part, measure, axis, start, end); none of these twice."""
    found = {(r.layer, r.part, r.measure, r.axis, r.start, r.end): r.value for r in rows}
    assert len(found) == len(rows)
    assert all(r.head is None and r.count == BATCH * TIME for r in rows)
    return found


def gains_of(prefix: str, matrices: list[np.ndarray]) -> dict[tuple, float]:
    """(measure, axis, start, end) -> mean over the matrices, entry by entry."""
    sums: dict[tuple, float] = {}
    for m in matrices:
        n, sigma = len(m), np.linalg.svd(m, compute_uv=False)
        signed = [abs(sum(m[i, j] for j in range(n))) for i in range(n)]
        signed += [abs(sum(m[i, j] for i in range(n))) for j in range(n)]
        one = {
            "sigma_max": sigma[0],
            "sigma_min": sigma[-1],
            "amax": max(signed),
            "row_sum": max(sum(abs(m[i, j]) for j in range(n)) for i in range(n)),
        }
        keyed = {(f"{prefix}_{name}", "", None, None): value for name, value in one.items()}
        keyed |= {(f"{prefix}_sigma", "rank", i, i + 1): sigma[i] for i in range(n)}
        for key, value in keyed.items():
            sums[key] = sums.get(key, 0.0) + value / len(matrices)
    return sums


@every_scheme
def test_gains_are_those_of_explicit_products_of_each_tokens_matrices(scheme):
    model, batch = model_with(scheme), tokens(BATCH, TIME)
    found = numbers(probe_model(model, batch, names=["mixing"]))
    with torch.no_grad():
        seen, _ = walk(model, batch)
    products = [np.eye(1 if scheme == "add" else 3) for _ in range(BATCH * TIME)]
    wanted = {}
    for place in [(i, part) for i in range(2) for part in PARTS]:
        res = (
            [np.eye(1)] * len(products) if scheme == "add" else list(seen[place][1].res.flatten(0, 1).numpy())
        )
        products = [h @ before for h, before in zip(res, products, strict=True)]
        for prefix, matrices in (("h_res", res), ("composite", products)):
            wanted |= {place + key: value for key, value in gains_of(prefix, matrices).items()}
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    if scheme == "add":
        assert set(found.values()) == {1.0}


def test_a_scheme_that_does_not_show_its_mixing_has_no_measure_of_it():
    """It had ones, and the caption of a figure said so."""
    hidden = ProbeEvent("streams", {"streams": torch.ones(1, 2, 2, 3)}, 0, "mixer")
    assert not list(Mixing().update(hidden))


def test_products_over_depth_leave_fp32_and_do_not_overflow_in_silence():
    """1000·I over 96 sub-blocks is 1e288; over 104 it is beyond fp64 too, and says so."""
    probe, growing = (
        Mixing(),
        {"streams": torch.ones(1, 2, 2, 3), "res": (1000 * torch.eye(2)).expand(1, 2, 2, 2)},
    )
    places = [(layer, part) for layer in range(52) for part in PARTS]
    rows = [row for i, part in places for row in probe.update(ProbeEvent("streams", growing, i, part))]
    found = {(r.layer, r.part, r.measure): r.value for r in rows if not r.axis}
    for name in ("sigma_max", "sigma_min", "amax", "row_sum"):
        assert found[47, "channel", f"composite_{name}"] == pytest.approx(1e288, rel=1e-12)
        assert not np.isfinite(found[51, "channel", f"composite_{name}"])


@every_scheme
def test_dimensions_are_those_of_streams_rebuilt_from_their_principal_directions(scheme):
    model, batch = model_with(scheme), tokens(BATCH, TIME)
    found = numbers(probe_model(model, batch, names=["stream_dimensions"]))
    with torch.no_grad():
        seen, _ = walk(model, batch)
    wanted = {}
    for place, (x, _) in seen.items():
        n = 1 if scheme == "add" else 3
        x = x.reshape(BATCH * TIME, n, 8).numpy().transpose(1, 0, 2).reshape(n, -1)
        wanted[(*place, "stream_rms", "", None, None)] = np.sqrt((x**2).sum() / x.size)
        wanted[(*place, "stream_spread", "", None, None)] = np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x)
        _, directions = np.linalg.eigh(x @ x.T)
        for rank in range(1, n + 1):
            u = directions[:, n - rank :]
            rebuilt, whole = u @ (u.T @ x), np.linalg.norm(x)
            wanted[(*place, "stream_energy", "rank", 0, rank)] = (np.linalg.norm(rebuilt) / whole) ** 2
            wanted[(*place, "stream_error", "rank", 0, rank)] = np.linalg.norm(x - rebuilt) / whole
    # Copies of the embedding use one dimension: the error left is rounding, of a square.
    assert found == pytest.approx(wanted, rel=1e-7, abs=1e-7)
    below(found[0, "mixer", "stream_error", "rank", 0, 1], 1e-7)
    if scheme != "add":
        above(found[1, "channel", "stream_error", "rank", 0, 1], 1e-3)


@every_scheme
def test_gradient_norms_are_those_of_a_backward_pass(scheme):
    model, batch = model_with(scheme), tokens(BATCH, TIME)
    found = numbers(probe_model(model, batch, names=["gradients"]))
    twin = copy.deepcopy(model)
    seen, loss = walk(twin, batch)
    for x, _ in seen.values():
        x.retain_grad()
    loss.backward()
    wanted = {(*place, "stream_gradient"): x.grad.norm().item() for place, (x, _) in seen.items()}
    for i, part in list(seen)[:-1]:
        prefixes = tuple(f"layers.{i}.{part}{suffix}." for suffix in ("", "_norm", "_residual"))
        squares = [
            p.grad.square().sum().item()
            for name, p in twin.named_parameters()
            if name.startswith(prefixes) and p.grad is not None
        ]
        wanted[i, part, "parameter_gradient"] = sum(squares) ** 0.5
    assert found == pytest.approx(
        {(*k, "", None, None): v for k, v in wanted.items()}, rel=1e-6
    )  # its loss is fp32
    assert min(found.values()) > 0


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_the_share_through_coefficients_is_what_the_gradient_lacks_where_they_are_constants(scheme):
    model, batch = model_with(scheme), tokens(BATCH, TIME)
    found = numbers(probe_model(model, batch, names=["coefficient_path"]))
    shares = {k[:2]: v for k, v in found.items() if k[2] == "coefficient_gradient_share"}
    assert set(shares) == {(i, part) for i in range(2) for part in PARTS}
    for place, share in shares.items():
        residual = getattr(model.layers[place[0]], f"{place[1]}_residual")
        whole = gradient_of_streams(model, batch, place)
        with mock.patch.object(residual, "forward", lambda x, r=residual: type(r).forward(r, x.detach())):
            rest = gradient_of_streams(model, batch, place)
        assert share == pytest.approx(
            ((whole - rest).norm() / whole.norm()).item(), rel=1e-5
        )  # its loss is fp32
        above(torch.tensor(share), 1e-6)
        if scheme in ("ohc", "shc"):
            assert found[(*place, "path_gain", "", None, None)] == pytest.approx(
                min(0.1, residual.path_gain().item())
            )


def gradient_of_streams(model: LanguageModel, batch: torch.Tensor, place: tuple) -> torch.Tensor:
    """∂loss/∂x of the streams at a place."""
    leaves = []

    def nudge(at: tuple, x: torch.Tensor) -> torch.Tensor:
        if at != place:
            return x
        leaves.append(x.detach().requires_grad_())
        return leaves[0]

    _, loss = walk(model, batch, nudge)
    return torch.autograd.grad(loss, leaves)[0]


@pytest.mark.slow
@torch.no_grad()
def test_the_gradient_of_streams_is_what_moving_each_entry_does_to_the_loss():
    model, batch = model_with("hc", width=4, n_streams=2), tokens(1, 3)
    rows = probe_model(model, batch, names=["gradients"])
    (found,) = [r.value for r in rows if (r.layer, r.part, r.measure) == (0, "channel", "stream_gradient")]
    slopes, step = torch.zeros(1, 3, 2, 4, dtype=torch.float64), 1e-5
    for index in np.ndindex(*slopes.shape):
        delta = torch.zeros_like(slopes)
        delta[index] = step
        up, down = (
            walk(model, batch, lambda place, x, d=d: x + d if place == (0, "channel") else x)[1]
            for d in (delta, -delta)
        )
        slopes[index] = (up - down) / (2 * step)
    assert found == pytest.approx(slopes.norm().item(), rel=1e-6)


def test_a_model_is_left_as_it_was_frozen_or_not():
    model, batch = model_with("ohc"), tokens(BATCH, TIME)
    wanted = probe_model(model, batch, names=["gradients", "mixing", "stream_dimensions"])
    frozen = copy.deepcopy(model).requires_grad_(False)
    frozen.norm.requires_grad_(True)
    with torch.no_grad():
        assert probe_model(frozen, batch, names=["gradients", "mixing", "stream_dimensions"]) == wanted
    assert all(p.grad is None for m in (model, frozen) for p in m.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert [name for name, p in frozen.named_parameters() if p.requires_grad] == ["norm.weight"]


def test_gradients_where_no_graph_can_be_are_refused():
    for measure in ("gradients", "coefficient_path"):
        with (
            torch.inference_mode(),
            pytest.raises(UserError, match=f"{measure}.* outside torch.inference_mode"),
        ):
            probe_model(model_with("ohc"), torch.randint(VOCAB, (1, 3)), names=[measure])

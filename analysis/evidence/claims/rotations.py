"""Claims on rotations: the Cayley transform, its series, its cost, mixtures."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.evidence.ledger.entries import Claim, Evidence, Part
from analysis.evidence.ledger.rules import Remark, about, at_least, at_most

FP64, FP32 = 1e-12, 1e-5


def cayley(evidence: Evidence) -> Iterator[Part]:
    """Yield checks of the Cayley transform: that it gives rotations, its free parameters, its gradient's formula."""
    names = ("QᵀQ = I", "det Q = 1", "singular values = 1", "Cayley(0) = I")
    needed = {f"error of {name}, float64": at_most(FP64) for name in names}
    needed |= {f"error of {name}, float32": at_most(FP32) for name in names}
    needed |= {"free numbers less n(n−1)/2": about(0.0), "error of the gradient's formula": at_most(FP64)}
    yield from evidence.checks(1, needed)


def neumann(evidence: Evidence) -> Iterator[Part]:
    """Yield how the truncated Neumann series' error falls with its terms where the document's condition holds."""
    for check in evidence.checks(2, {"error of ‖QᵀQ − I‖ = ‖A‖^(2K+2)": at_most(FP64)}):
        yield check
        if check.name.startswith("smallest even K"):
            yield Remark(
                "the document gives no K, and ‖A‖ < 1 alone does not make few terms enough: the remainder is "
                f"(−A)^(K+1), and at ‖A‖ = 0.9 the SHC document's tolerance, 1e-5, takes K = {check.value:.0f}",
                check,
            )


def against_sinkhorn(evidence: Evidence) -> Iterator[Part]:
    """Yield the time of Sinkhorn over that of both forms of Cayley, timed in turns."""
    yield from evidence.checks(3, {"Sinkhorn's time over Cayley's": at_least(1.0)})


def mixtures(evidence: Evidence) -> Iterator[Part]:
    """Yield checks that mixtures of rotations, and products of these, have σ_max ≤ 1; σ_min beside, unjudged."""
    yield from evidence.checks(5, {"σ_max": at_most(FP64)})


CLAIMS = (
    Claim(
        1,
        "The Cayley transform of a skew matrix is a rotation with n(n−1)/2 free numbers and a gradient in closed form",
        "OrthGSA, OrthGSA (short), SHC",
        "QᵀQ = I, det = +1, ‖Q‖₂ = 1, Cayley(0) = I, dQ = −2(I + A)⁻¹dA(I + A)⁻¹",
        f"every error at most {FP64:g} in fp64, {FP32:g} in fp32 (the SHC document's own tolerance)",
        cayley,
        "pytest tests/kernels/cayley",
    ),
    Claim(
        2,
        "Where ‖A‖ < 1 the Neumann series approximates (I + A)⁻¹",
        "OrthGSA",
        "(I + A)⁻¹ ≈ Σ_{k ≤ K} (−A)^k when ‖A‖ < 1",
        f"at ‖A‖ = 0.1, 0.5 and 0.9 the result is off a rotation by ‖A‖^(2K+2), to {FP64:g} at K = 8, which vanishes "
        "as K grows; the document gives no K, so what K = 2 and 5 leave is shown",
        neumann,
        "pytest tests/kernels/cayley",
        shows="error of ‖QᵀQ − I‖ = ‖A‖^(2K+2) at ‖A‖ = 0.9",
    ),
    Claim(
        3,
        "The Cayley transform of 4×4 matrices is cheaper than 20 Sinkhorn iterations",
        "OrthGSA, SHC",
        "one solve, O(n³), against O(20·n²)",
        "Sinkhorn's time over Cayley's on a CPU, forward and backward: the whole interval above 1, closed form and "
        "solve",
        against_sinkhorn,
        "python run.py job=bench suite=kernels device=cpu 'bench.cases=[cayley,sinkhorn]'",
    ),
    Claim(
        5,
        "A mixture of rotations never has a singular value above 1, nor has a product of such mixtures",
        "SHC",
        "ρ ≤ 1 at any depth",
        f"σ_max − 1 at most {FP64:g} in fp64, also over 60 layers",
        mixtures,
        "pytest tests/zoo/test_residual_schemes.py",
    ),
)

"""`regression`: linear regression from the examples in the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least, one_of

WEIGHTS = ("normal", "signs")
INPUTS = ("signs", "bits")


@dataclass
class RegressionConfig:
    """Options of `regression`.

    points: examples of a sequence, two tokens each, at most 2^(dimensions − 1), or 2^dimensions − 1 of bits.
    dimensions: d, dimensions of the inputs, each of which is one of 2^d tokens; at most 24.
    bins: intervals that the outputs are sorted into, at least 2.
    weights: normal, w ~ N(0, I), or signs, all equally likely.
    unasked: first examples of a sequence whose outputs are shown and not asked for.
    inputs: signs, or bits.
    """

    points: int = 24
    dimensions: int = 6
    bins: int = 8
    weights: str = "normal"
    unasked: int = 0
    inputs: str = "signs"


@register_task(
    "regression", config=RegressionConfig, title="In-context linear regression",
    source="Garg et al. 2022 (arXiv:2208.01066), section 3; von Oswald et al. 2025, MesaNet (arXiv:2506.05233)",
)  # fmt: skip
class Regression(Task):
    """Inputs x and outputs of one random linear function a sequence; every output is asked for after its input.

        y = w·x/√d,   w ~ N(0, I) in d dimensions or in {−1, 1}^d,   b = ⌊Φ(y)·bins⌋
        x in {−1, 1}^d, or of bits in {0, 1}^d and not zero

        tokens   -++-++  b3  +--++-  b6  +++-+-  b0
        targets      b3   .      b6   .      b0   .

    An input is one token, whose embedding has to become the vector x. Neither an input nor its opposite, whose output
    is the mirrored one, comes twice in a sequence, so recalling pairs does not help. An output is the bin b of y, Φ the
    standard normal distribution. With normal weights and inputs of signs all bins are equally likely given x alone, and
    after d independent inputs w is known but for what the bins hide, so nobody is always right. Weights that are signs
    can be known from enough examples: then late outputs, those after `unasked`, can be had exactly. Where inputs are
    signs too, a single example tells every output's value modulo 4, and small models stay with that; bits have no such
    short cut. In the papers w and x are real-valued and normal, a token is the vector of the pair (x, y) or of x, and
    the loss is squared; a language model takes and gives tokens, hence signs or bits, the bins of outputs and the
    cross-entropy. Other directions are never asked for.
    """

    rule = "regression 2"
    hardness = "examples before"

    def __init__(self, options: RegressionConfig) -> None:
        super().__init__(options)
        at_least(options.dimensions, 1, "data.tasks.regression.dimensions", most=24)
        at_least(options.bins, 2, "data.tasks.regression.bins")
        one_of(options.weights, WEIGHTS, "data.tasks.regression.weights")
        one_of(options.inputs, INPUTS, "data.tasks.regression.inputs")
        self._check_points()
        if not 0 <= options.unasked < options.points:
            raise UserError(
                f"data.tasks.regression.unasked={options.unasked} must be at least 0 and below "
                f"data.tasks.regression.points={options.points}, so that a point is asked"
            )
        self.first_bin = 2**options.dimensions
        self.vocab_size, self.seq_len = self.first_bin + options.bins, 2 * options.points
        normal = NormalDist()
        self.edges = np.array([normal.inv_cdf(i / options.bins) for i in range(1, options.bins)])
        self.chance = self._likeliest_bin()

    def _check_points(self) -> None:
        points, most = self.options.points, 2 ** (self.options.dimensions - 1)
        bound, why = f"2^(dimensions - 1)={most}", "neither an input nor its opposite comes twice"
        if self.options.inputs == "bits":
            most = 2 * most - 1
            bound, why = f"2^dimensions - 1={most}", "no input comes twice and none is zero"
        if not 1 <= points <= most:
            raise UserError(
                f"data.tasks.regression.points={points} must be at least 1 and at most {bound}, because {why}"
            )

    def _likeliest_bin(self) -> float:
        """The probability of the likeliest bin given an input, mean over inputs."""
        d, bits = self.options.dimensions, self.options.inputs == "bits"
        if not bits:
            return self._most_likely(d)
        return sum(comb(d, ones) * self._most_likely(ones) for ones in range(1, d + 1)) / (2**d - 1)

    def _most_likely(self, terms: int) -> float:
        """Return the probability of the likeliest bin of a sum of so many weights over √d."""
        d = self.options.dimensions
        if self.options.weights == "normal":
            below = [NormalDist(0, sqrt(terms / d)).cdf(edge) for edge in self.edges]
            return float(np.diff([0.0, *below, 1.0]).max())
        sums = terms - 2.0 * np.arange(terms + 1)
        shares = [comb(terms, minus) / 2**terms for minus in range(terms + 1)]
        return float(np.bincount(self._bins(sums / sqrt(d)), weights=shares).max())

    def _bins(self, y: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.edges, y, side="right")

    def draw(self, draws: Draws) -> Drawn:
        """The function, then inputs and the bins of their outputs."""
        points, d = self.options.points, self.options.dimensions
        w = draws.normal(d) if self.options.weights == "normal" else 2.0 * draws.below(2, d) - 1
        inputs = self._draw_inputs(draws)
        bins = self.first_bin + self._bins((self._vectors(inputs) * w).sum(-1) / np.sqrt(d))
        tokens, asked = np.stack([inputs, bins], axis=1).ravel(), np.arange(self.options.unasked, points)
        return ask(tokens, 2 * asked, bins[asked], asked)

    def _draw_inputs(self, draws: Draws) -> np.ndarray:
        """Input tokens [points]: coordinate i of x is the i-th bit of the token, or 2·bit − 1."""
        points = self.options.points
        if self.options.inputs == "bits":
            return 1 + draws.distinct(self.first_bin - 1, points)
        inputs = draws.distinct(self.first_bin // 2, points)
        return np.where(draws.below(2, points), self.first_bin - 1 - inputs, inputs)

    def _vectors(self, inputs: np.ndarray) -> np.ndarray:
        """The vectors x of input tokens [n], float64 [n, d]."""
        bits = (inputs[:, None] >> np.arange(self.options.dimensions) & 1).astype(np.float64)
        return bits if self.options.inputs == "bits" else 2.0 * bits - 1

    def word(self, token: int) -> str:
        """The signs or bits of an input, b0 … for bins of outputs."""
        if token >= self.first_bin:
            return f"b{token - self.first_bin}"
        (x,) = self._vectors(np.array([token]))
        letters = "01" if self.options.inputs == "bits" else "-+"
        return "".join(letters[int(coordinate > 0)] for coordinate in x)

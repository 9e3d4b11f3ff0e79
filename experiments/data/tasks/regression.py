"""`regression`: linear regression from the examples in the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from statistics import NormalDist

import numpy as np

from experiments.data.draws import Draws
from experiments.data.task_registry import Drawn, Task, ask, register_task
from zoo.errors import UserError
from zoo.option_checks import at_least, one_of

WEIGHTS = ("normal", "signs")


@dataclass
class RegressionConfig:
    """Options of `regression`.

    points: examples of a sequence, two tokens each, at most 2^(dimensions − 1).
    dimensions: d, of the inputs.
    bins: parts into which the outputs are cut, at least 2.
    weights: w ~ N(0, I), or signs, all equally likely.
    unasked: first examples of a sequence whose outputs are shown and not asked for.
    """

    points: int = 24
    dimensions: int = 6
    bins: int = 8
    weights: str = "normal"
    unasked: int = 0


@register_task(
    "regression", config=RegressionConfig, title="In-context linear regression",
    source="Garg et al. 2022 (arXiv:2208.01066), section 3; von Oswald et al. 2025, MesaNet (arXiv:2506.05233)",
)  # fmt: skip
class Regression(Task):
    """Inputs x and outputs of one random linear function a sequence; every output is asked for after its input.

        y = w·x/√d,   w ~ N(0, I) in d dimensions or in {−1, 1}^d,   x in {−1, 1}^d,   b = ⌊Φ(y)·bins⌋

        tokens   -++-++  b3  +--++-  b6  +++-+-  b0
        targets      b3   .      b6   .      b0   .

    An input is one token, whose embedding has to become the vector x. Neither an input nor its opposite, whose output
    is the mirrored one, comes twice in a sequence, so recalling pairs does not help. An output is the bin b of y, Φ the
    standard normal distribution. With normal weights all bins are equally likely given x alone, and after d independent
    inputs w is known but for what the bins hide, so nobody is always right. Weights that are signs can be known from
    enough examples: then late outputs, those after `unasked`, can be had exactly. In the papers w and x are real-valued
    and normal, a token is the vector of the pair (x, y) or of x, and the loss is squared; a language model takes and
    gives tokens, hence the signs, the bins and the cross-entropy. Other directions than signs are never asked for.
    """

    rule = "regression 2"
    hardness = "examples before"

    def __init__(self, options: RegressionConfig) -> None:
        super().__init__(options)
        at_least(options.dimensions, 1, "data.tasks.regression.dimensions")
        at_least(options.bins, 2, "data.tasks.regression.bins")
        one_of(options.weights, WEIGHTS, "data.tasks.regression.weights")
        if not 1 <= options.points <= 2 ** (options.dimensions - 1):
            raise UserError(
                f"data.tasks.regression.points={options.points} must be at least 1 and at most 2^(dimensions - 1)="
                f"{2 ** (options.dimensions - 1)}, for neither an input nor its opposite comes twice"
            )
        if not 0 <= options.unasked < options.points:
            raise UserError(
                f"data.tasks.regression.unasked={options.unasked} must be at least 0 and below "
                f"data.tasks.regression.points={options.points}, for something has to be asked"
            )
        self.first_bin = 2**options.dimensions
        self.vocab_size, self.seq_len = self.first_bin + options.bins, 2 * options.points
        normal = NormalDist()
        self.edges = np.array([normal.inv_cdf(i / options.bins) for i in range(1, options.bins)])
        self.chance = 1 / options.bins if options.weights == "normal" else self._likeliest_bin()

    def _likeliest_bin(self) -> float:
        """The probability of the likeliest bin where weights are signs: d − 2i of them agree with x, i binomial."""
        d = self.options.dimensions
        bins = self._bins((d - 2.0 * np.arange(d + 1)) / np.sqrt(d))
        return float(np.bincount(bins, weights=[comb(d, i) / 2**d for i in range(d + 1)]).max())

    def _bins(self, y: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.edges, y, side="right")

    def draw(self, draws: Draws) -> Drawn:
        """The function, then inputs and the bins of their outputs."""
        points, d = self.options.points, self.options.dimensions
        w = draws.normal(d) if self.options.weights == "normal" else 2.0 * draws.below(2, d) - 1
        inputs = draws.distinct(self.first_bin // 2, points)
        inputs = np.where(draws.below(2, points), self.first_bin - 1 - inputs, inputs)
        bins = self.first_bin + self._bins((signs(inputs, d) * w).sum(-1) / np.sqrt(d))
        tokens, asked = np.stack([inputs, bins], axis=1).ravel(), np.arange(self.options.unasked, points)
        return ask(tokens, 2 * asked, bins[asked], asked)

    def word(self, token: int) -> str:
        """The signs of an input, b0 … for bins of outputs."""
        if token >= self.first_bin:
            return f"b{token - self.first_bin}"
        return "".join("+" if s > 0 else "-" for s in signs(np.array([token]), self.options.dimensions)[0])


def signs(inputs: np.ndarray, dimensions: int) -> np.ndarray:
    """The vectors in {−1, 1}^d of input tokens [n]: coordinate i is the i-th bit, float64 [n, d]."""
    return 2.0 * (inputs[:, None] >> np.arange(dimensions) & 1) - 1

"""`permutations`: the product of group elements so far."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import added, at_least, one_of

GROUPS = {"S3": 3, "S5": 5, "A5": 5}
"""Group -> points that it permutes; A: the even permutations alone."""


@dataclass
class PermutationsConfig:
    """Options of `permutations`.

    group: S3 (6 elements, solvable), S5 (120, not solvable) or A5 (60, not solvable).
    length: elements of a sequence, at least 2.
    swaps: whether only the identity and swaps of two points are drawn (S3, S5).
    """

    group: str = "S3"
    length: int = 24
    swaps: bool = added(False, before=False)


@register_task(
    "permutations", config=PermutationsConfig, title="Words over permutation groups",
    source="Merrill, Petty and Sabharwal 2024, The illusion of state (arXiv:2404.08819), section 5; swaps: Grazzi et "
    "al. 2024 (arXiv:2411.12537), section 5.1",
)  # fmt: skip
class Permutations(Task):
    """Random elements g of a group; after every one but the first their product is asked for, p_t = g_t ∘ … ∘ g_0.

        tokens   213  132  213  321        (n-th digit: where point n goes)
        targets    .  312  132  231

    (g ∘ h)(x) = g(h(x)): later elements act on what earlier ones made. The answers are not shown to the model: with
    the last product and the next element every model could go on. The first product is the first element, so it is not
    asked for. S5 and A5 are not solvable, so that their words are hard for all of NC¹. The paper's data multiply from
    the left, g_0 ∘ … ∘ g_t, which is the same with every element named by its inverse; it has lengths up to 25, each
    trained by itself. Words of few elements are met in training, held-out sequences never.

    A swap of two points is a Householder reflection, so one delta rule with negative eigenvalues follows words of
    `swaps`; every element of the group is still a possible answer.
    """

    rule = "permutations 1"
    hardness = "elements so far"

    def __init__(self, options: PermutationsConfig) -> None:
        super().__init__(options)
        one_of(options.group, tuple(GROUPS), "data.tasks.permutations.group")
        at_least(options.length, 2, "data.tasks.permutations.length")
        if options.swaps and options.group[0] != "S":
            raise UserError(
                f"data.tasks.permutations.swaps=true needs a group with swaps, S3 or S5, and {options.group} has "
                "only even permutations"
            )
        self.elements, self.products = group(options.group)
        self.drawn = np.array([i for i, p in enumerate(self.elements) if not options.swaps or is_swap(p)])
        self.vocab_size, self.seq_len = len(self.elements), options.length
        self.chance = self._likeliest()

    def _likeliest(self) -> float:
        """The probability of the likeliest product before an element, mean over the elements that are asked for."""
        step = np.zeros(len(self.elements))
        step[self.drawn] = 1 / len(self.drawn)
        table, before, likeliest = np.array(self.products), step, []
        for _ in range(1, self.seq_len):
            likeliest.append(before.max())
            reached = table[self.drawn]  # [drawn, elements]: the product after each step from each product
            weights = np.broadcast_to(before / len(self.drawn), reached.shape)
            before = np.bincount(reached.ravel(), weights.ravel(), len(before))
        return float(np.mean(likeliest))

    def draw(self, draws: Draws) -> Drawn:
        """The elements and their products."""
        tokens = self.drawn[draws.below(len(self.drawn), self.seq_len)]
        products = list(itertools.accumulate(tokens.tolist(), lambda before, g: self.products[g][before]))
        places = np.arange(1, self.seq_len)
        return ask(tokens, places, np.array(products[1:]), places + 1)

    def word(self, token: int) -> str:
        """Return a permutation as a word: the points to which 1, 2, 3, … go, in order."""
        return "".join(str(point + 1) for point in self.elements[token])


@functools.lru_cache
def group(name: str) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """The elements of a group, each the points that 0, 1, … go to, and the table of products: [g][h] is g ∘ h."""
    elements = [p for p in itertools.permutations(range(GROUPS[name])) if name[0] == "S" or is_even(p)]
    place = {p: i for i, p in enumerate(elements)}
    return elements, [[place[tuple(g[x] for x in h)] for h in elements] for g in elements]


def is_even(permutation: tuple[int, ...]) -> bool:
    """Return whether a permutation has an even number of inversions."""
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def is_swap(permutation: tuple[int, ...]) -> bool:
    """Return whether a permutation moves two points, or none."""
    return sum(place != point for place, point in enumerate(permutation)) <= 2

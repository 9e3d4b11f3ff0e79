"""`entity_tracking`: items in boxes whose contents are swapped."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.options import at_least


@dataclass
class EntityTrackingConfig:
    """Options of `entity_tracking`.

    boxes: boxes with one item each, 2 to 4,096: a swap is one of about boxes²/2 tokens.
    items: kinds of items, at least 2.
    swaps: swaps of a sequence, each followed by a question.
    """

    boxes: int = 5
    items: int = 16
    swaps: int = 16


@register_task(
    "entity_tracking", config=EntityTrackingConfig, title="Entity tracking",
    source="Kim and Schuster 2023, Entity tracking in language models (arXiv:2305.02363); swaps: the theorem of PaTH "
    "(arXiv:2505.16381)",
)  # fmt: skip
class EntityTracking(Task):
    """Each box holds an item; two boxes swap what they hold, and what is in one box is asked for.

        tokens   1:a2 2:a9 3:a3  1-3  ?1  2-3  ?3
        targets    .    .    .    .   a3   .   a9

    A swap is of any two boxes, or 1-1, which changes nothing, all equally likely; a question is of any box. Answers are
    not shown. The contents of five boxes are words over S5, which is not solvable; unlike `permutations` a question
    asks for the image of one point. Boxes may hold items of the same kind. The paper's operations also put and remove
    items, in English.
    """

    rule = "entity_tracking 1"
    hardness = "swaps so far"

    def __init__(self, options: EntityTrackingConfig) -> None:
        super().__init__(options)
        at_least(options.boxes, 2, "data.tasks.entity_tracking.boxes", most=4096)
        at_least(options.swaps, 1, "data.tasks.entity_tracking.swaps")
        at_least(options.items, 2, "data.tasks.entity_tracking.items")
        boxes, items = options.boxes, options.items
        self.pairs = np.array([(0, 0), *itertools.combinations(range(boxes), 2)])
        self.first_swap = items + items * boxes
        self.first_question = self.first_swap + len(self.pairs)
        self.vocab_size, self.seq_len = self.first_question + boxes, boxes + 2 * options.swaps
        self.chance = 1 / items

    def draw(self, draws: Draws) -> Drawn:
        """Draw the boxes' items, the swaps and the questions; return a sequence of boxes + 2·swaps tokens.

        After the n-th swap (from 1) one box is asked for; its answer is the item there, an id below `items`, and its
        difficulty is n.
        """
        boxes, items, count = self.options.boxes, self.options.items, self.options.swaps
        held = draws.below(items, boxes)
        chosen, asked = draws.below(len(self.pairs), count), draws.below(boxes, count)
        tokens = np.empty(self.seq_len, dtype=np.int64)
        tokens[:boxes] = items + items * np.arange(boxes) + held
        tokens[boxes::2], tokens[boxes + 1 :: 2] = self.first_swap + chosen, self.first_question + asked
        answers = np.empty(count, dtype=np.int64)
        for n, (pair, box) in enumerate(zip(self.pairs[chosen], asked, strict=True)):
            held[pair] = held[pair[::-1]]
            answers[n] = held[box]
        return ask(tokens, boxes + 1 + 2 * np.arange(count), answers, 1 + np.arange(count))

    def as_answers(self, tokens: np.ndarray) -> np.ndarray:
        """Return the answers that tokens [T] show: a2 for 1:a2, and for all others the token itself."""
        in_a_box = (tokens >= self.options.items) & (tokens < self.first_swap)
        return np.where(in_a_box, (tokens - self.options.items) % self.options.items, tokens)

    def word(self, token: int) -> str:
        """Return a token in words: a1 … for items, 1:a2 … for an item in a box, 1-3 … for swaps, ?1 … for questions."""
        items = self.options.items
        if token < items:
            return f"a{token + 1}"
        if token < self.first_swap:
            box, item = divmod(token - items, items)
            return f"{box + 1}:a{item + 1}"
        if token < self.first_question:
            return "-".join(str(box + 1) for box in self.pairs[token - self.first_swap])
        return f"?{token - self.first_question + 1}"

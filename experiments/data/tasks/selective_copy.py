"""`selective_copy`: copying what is scattered among blanks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import ORDER, Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least


@dataclass
class SelectiveCopyConfig:
    """Options of `selective_copy`.

    context: tokens in which the items are scattered.
    items: items to copy, each a question at the end.
    values: number of different items, at least 2.
    """

    context: int = 48
    items: int = 8
    values: int = 16


@register_task(
    "selective_copy", config=SelectiveCopyConfig, title="Selective copying",
    source="Gu and Dao 2023, Mamba (arXiv:2312.00752), section 4.1.1; Poli et al. 2024, MAD (arXiv:2403.17844)",
)  # fmt: skip
class SelectiveCopy(Task):
    """Items at random places among blanks; then a mark for each, where the items are asked for in their order.

        tokens   .  a5  .  .  a2  .  .  a9  .   ?   ?   ?
        targets  .   .  .  .   .  .  .   .  .  a5  a2  a9

    The gaps differ from sequence to sequence, so no fixed distance copies. Items repeat as they fall. The answers are
    not shown to the model. The paper has context=4096, items=16, values=16 (MAD: 256 tokens in all).
    """

    rule = "selective_copy 1"
    hardness = "tokens between an item and its question"
    copies_by = (ORDER,)

    def __init__(self, options: SelectiveCopyConfig) -> None:
        super().__init__(options)
        at_least(options.items, 1, "data.tasks.selective_copy.items")
        at_least(options.values, 2, "data.tasks.selective_copy.values")
        if options.context < options.items:
            raise UserError(
                f"data.tasks.selective_copy.context={options.context} has no room for "
                f"data.tasks.selective_copy.items={options.items}; give at least as many"
            )
        self.blank, self.mark = options.values, options.values + 1
        self.vocab_size, self.seq_len = options.values + 2, options.context + options.items
        self.chance = 1 / options.values

    def draw(self, draws: Draws) -> Drawn:
        """Places and items, then the marks."""
        context, items = self.options.context, self.options.items
        places = np.sort(draws.distinct(context, items))
        answers = draws.below(self.options.values, items)
        questions = context + np.arange(items)
        tokens = np.full(self.seq_len, self.blank)
        tokens[places], tokens[questions] = answers, self.mark
        return ask(tokens, questions, answers, questions - places)

    def word(self, token: int) -> str:
        """a0, a1, … for items, `.` for the blank and `?` for the mark."""
        return {self.blank: ".", self.mark: "?"}.get(token, f"a{token}")

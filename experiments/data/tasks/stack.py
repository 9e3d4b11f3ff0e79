"""`stack`: several stacks, to which is pushed and from which is popped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.options import at_least

PUSH, POP = 0, 1


@dataclass
class StackConfig:
    """Options of `stack`.

    operations: pushes and pops, three tokens each.
    stacks: number of stacks.
    values: number of different items, at least 2.
    """

    operations: int = 16
    stacks: int = 2
    values: int = 16


@register_task(
    "stack", config=StackConfig, title="Stacks",
    source="Kimi Team 2025, Kimi Linear (arXiv:2510.26692), section 5.1",
)  # fmt: skip
class Stack(Task):
    """Operations on stacks, last in, first out; what a pop gives is asked for after the stack is named.

        tokens   push s0 a7  push s1 a3  push s0 a2  pop s0 a2  pop s0 a7
        targets    .  .  .     .  .  .     .  .  .     . a2  .     . a7  .

    An operation is a push or a pop with equal chances, of any stack or of one that is not empty; with all empty it is
    a push, and the last is a pop where it can be. As in a text, the answer is shown after it was asked for. The paper
    has 64 stacks.
    """

    rule = "stack 1"
    hardness = "tokens between an item's push and its pop"

    def __init__(self, options: StackConfig) -> None:
        super().__init__(options)
        at_least(options.operations, 2, "data.tasks.stack.operations")
        at_least(options.stacks, 1, "data.tasks.stack.stacks")
        at_least(options.values, 2, "data.tasks.stack.values")
        self.first_value = 2 + options.stacks
        self.vocab_size, self.seq_len = self.first_value + options.values, 3 * options.operations
        self.chance = 1 / options.values

    def draw(self, draws: Draws) -> Drawn:
        """One operation after another."""
        count, stacks = self.options.operations, [[] for _ in range(self.options.stacks)]
        pops, chosen = draws.below(2, count).tolist(), draws.uniform(count).tolist()
        items = (self.first_value + draws.below(self.options.values, count)).tolist()
        pops[-1] = 1
        tokens: list[int] = []
        asked: list[tuple[int, int, int]] = []
        for operation, (pop, share, item) in enumerate(zip(pops, chosen, items, strict=True)):
            filled = [name for name, stack in enumerate(stacks) if stack]
            places = filled if pop and filled else range(len(stacks))
            name, question = places[int(share * len(places))], 3 * operation + 1
            if pop and filled:
                item, pushed = stacks[name].pop()
                asked.append((question, item, question - pushed))
            else:
                stacks[name].append((item, question))
            tokens += [POP if pop and filled else PUSH, 2 + name, item]
        return ask(np.array(tokens), *np.array(asked).T)

    def word(self, token: int) -> str:
        """push, pop, s0 … for stacks, a0 … for items."""
        if token < 2:
            return ("push", "pop")[token]
        return f"s{token - 2}" if token < self.first_value else f"a{token - self.first_value}"

"""Equal decode state by the mixers' head widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zoo import registry
from zoo.config import ModelConfig
from zoo.errors import UserError
from zoo.matching.layer_states import Choice, LayerStates
from zoo.matching.reference import TOLERANCE, plain_transformer, with_options
from zoo.model import letters_of

Combination = tuple[Choice, ...]


def match_state(config: ModelConfig, seq_len: int, length: int) -> ModelConfig:
    """The configuration with the head widths at which the decode state after `length` tokens is the transformer's.

    As it is where that already holds. Layers whose state has one size (a short convolution) keep it, and the others
    share equally what is left. `Mixer.state_options` names the option that is solved for; where whole numbers of it
    are too coarse, a second option or another number of heads, as near to its own as possible, makes up for the rest.
    Raises UserError where nothing comes within the tolerance.
    """
    solver = _Solver(config, seq_len, length)
    if abs(solver.total() / solver.target - 1) <= TOLERANCE:
        return config
    solver.refuse_what_cannot_be_solved()
    tried: list[Combination] = []
    for other_heads in (False, True):
        tried += solver.combinations(other_heads)
        close = [each for each in tried if solver.error(each) <= TOLERANCE]
        if close:
            return solver.applied(min(close, key=lambda x: (sum(c.effort for c in x), solver.error(x))))
    raise UserError(solver.why_not(min(tried, key=solver.error)))


class _Solver:
    """The layers of a model by letter: those whose state can be chosen, and the bytes that they have to make up."""

    def __init__(self, config: ModelConfig, seq_len: int, length: int) -> None:
        self.config, self.length, self.letters = config, length, letters_of(config)
        self.states = LayerStates(config, seq_len, length)
        self.target = len(self.letters) * LayerStates(plain_transformer(config), seq_len, length).of("F")
        self.free = [letter for letter in sorted(set(self.letters)) if self.states.solved(letter)]
        self.fixed = sum(self.states.of(letter) for letter in self.letters if letter not in self.free)

    def total(self, combination: Combination | None = None) -> int:
        """Bytes of the whole state, as configured or with the choices of a combination."""
        if combination is None:
            return sum(self.states.of(letter) for letter in self.letters)
        pairs = zip(self.free, combination, strict=True)
        return self.fixed + sum(self.letters.count(letter) * choice.bytes for letter, choice in pairs)

    def error(self, combination: Combination) -> float:
        return abs(self.total(combination) / self.target - 1)

    def combinations(self, other_heads: bool) -> Iterator[Combination]:
        """A choice for each kind of layer, in every combination."""
        share = (self.target - self.fixed) / sum(self.letters.count(letter) for letter in self.free)
        return itertools.product(*(self.states.choices(letter, share, other_heads) for letter in self.free))

    def applied(self, combination: Combination) -> ModelConfig:
        """The configuration with the chosen options."""
        config = self.config
        for letter, choice in zip(self.free, combination, strict=True):
            config = with_options(config, "mixers", _name(letter), **choice.options)
        return config

    def refuse_what_cannot_be_solved(self) -> None:
        """Raise UserError where no layer's state can be chosen, and where a width to solve for is given."""
        reference = f"the transformer's has {self.target:,} bytes after {self.length:,} tokens"
        if not self.free:
            names = " and ".join(sorted({_name(letter) for letter in self.letters}))
            raise UserError(
                f"match=state: the decode state of {names} has one size, {self.fixed:,} bytes whatever the widths, and "
                f"{reference}; add layers whose state can be chosen (job=list), or set match=null"
            )
        for letter in self.free:
            option = self.states.solved(letter)[0]
            given = self.states.given(letter, option)
            if given is not None:
                raise UserError(
                    f"match=state solves mixers.{_name(letter)}.{option}, and {given} gives {self.total():,} bytes of "
                    f"decode state where {reference}; leave one of the two out"
                )

    def why_not(self, nearest: Combination) -> str:
        """Say what is possible where no combination is within the tolerance."""
        options = ", ".join(
            f"mixers.{_name(letter)}.{option}={value}"
            for letter, choice in zip(self.free, nearest, strict=True)
            for option, value in choice.options.items()
        )
        total = self.total(nearest)
        return (
            f"match=state: no head widths bring the decode state after {self.length:,} tokens within 1 % of the "
            f"transformer's {self.target:,} bytes; the nearest is {total:,} ({total / self.target - 1:+.1%}), with "
            f"{options}; choose another match_length, or set match=null"
        )


def _name(letter: str) -> str:
    return registry.mixer_by_letter()[letter].name

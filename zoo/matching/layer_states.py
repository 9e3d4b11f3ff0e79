"""Decode-state bytes of single layers, and the widths at which a layer's state comes near a given size."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

from zoo import cost, registry
from zoo.config import ModelConfig
from zoo.errors import UserError
from zoo.matching.reference import with_options
from zoo.model import on_meta

FARTHEST = 0.1
"""The share by which a layer's state may differ from its part, where layers of another kind make up for it."""

_PROBED = (8, 16, 24)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Options of a mixer, the bytes of a layer's state with them, and how far they are from what one would choose."""

    options: dict[str, int]
    bytes: int
    effort: float


class LayerStates:
    """The decode states of a configuration's layers after `length` tokens, by letter, with other options if given."""

    def __init__(self, config: ModelConfig, seq_len: int, length: int) -> None:
        self.config, self.seq_len, self.length = config, seq_len, length
        self.bytes = functools.lru_cache(maxsize=None)(self._bytes)

    def of(self, letter: str, **options: int) -> int:
        """Bytes of one layer's state with these options of its mixer. Raises UserError where they do not fit."""
        return self.bytes(letter, tuple(sorted(options.items())))

    def given(self, letter: str, option: str) -> int | None:
        """The value of an option in the configuration; None: the mixer's own default."""
        return getattr(getattr(self.config.mixers, self._name(letter)), option)

    def solved(self, letter: str) -> tuple[str, ...]:
        """The options that the state's size is solved by; none where it has one size."""
        return registry.mixer_by_letter()[letter].cls.state_options

    def choices(self, letter: str, wanted: float, other_heads: bool) -> list[Choice]:
        """Options that bring a layer's state near `wanted` bytes; other_heads: with other numbers of heads too."""
        found = []
        for heads, effort in self._heads(letter) if other_heads else (({}, 0),):
            found += self._by_width(letter, wanted, heads, effort)
        return found

    def _by_width(self, letter: str, wanted: float, heads: dict[str, int], effort: float) -> Iterator[Choice]:
        first, *second = self.solved(letter)
        try:
            probed = [self.of(letter, **heads, **{first: width}) for width in _PROBED]
        except UserError:  # so many heads do not go with the other options
            return
        for width in _near(_root(probed, wanted)):
            options = {**heads, first: width}
            try:
                size = self.of(letter, **options)
            except UserError:  # rotary positions need an even width
                continue
            beside = abs(size / wanted - 1)
            if beside > FARTHEST:
                continue
            rough = effort + _roughness(width) + 100 * beside
            yield Choice(options, size, rough)
            for option in second:
                yield from self._with_second(letter, wanted, options, option, rough + 4)

    def _with_second(
        self, letter: str, wanted: float, options: dict[str, int], option: str, effort: float
    ) -> Iterator[Choice]:
        one, two = (self.of(letter, **options, **{option: value}) for value in (1, 2))
        value = 1 + round((wanted - one) / (two - one))
        if value >= 1:
            changed = {**options, option: value}
            yield Choice(changed, self.of(letter, **changed), effort)

    def _heads(self, letter: str) -> Iterator[tuple[dict[str, int], int]]:
        """Numbers of heads from half to twice the mixer's own, with the effort of each."""
        heads = getattr(self._model(letter, {}).layers[0].mixer, "heads", None)
        if heads is None or not hasattr(getattr(self.config.mixers, self._name(letter)), "n_heads"):
            return
        for other in range(max(1, heads // 2), 2 * heads + 1):
            yield {"n_heads": other}, 8 * abs(other - heads)

    def _bytes(self, letter: str, options: Iterable[tuple[str, int]]) -> int:
        return cost.state_bytes(self._model(letter, dict(options)), self.length)

    def _model(self, letter: str, options: dict[str, int]):
        one = dataclasses.replace(self.config, pattern=letter, depth=1)
        return on_meta(
            with_options(one, "mixers", self._name(letter), **options), vocab_size=8, seq_len=self.seq_len
        )

    def _name(self, letter: str) -> str:
        return registry.mixer_by_letter()[letter].name


def _root(sizes: list[int], wanted: float) -> float:
    """The width at which the polynomial of degree two through the probed sizes is `wanted`, at least 1."""
    step = _PROBED[1] - _PROBED[0]
    c = (sizes[2] - 2 * sizes[1] + sizes[0]) / (2 * step**2)
    b = (sizes[1] - sizes[0]) / step - c * (_PROBED[0] + _PROBED[1])
    a = sizes[0] - b * _PROBED[0] - c * _PROBED[0] ** 2 - wanted
    root = -a / b if c == 0 else (-b + math.sqrt(max(0.0, b * b - 4 * a * c))) / (2 * c)
    return max(1.0, root)


def _near(width: float) -> list[int]:
    """The multiples of 8, 4, 2 and 1 just below and above a width."""
    around = {step * side for step in (8, 4, 2, 1) for side in (int(width // step), int(width // step) + 1)}
    return sorted(around - {0})


def _roughness(width: int) -> int:
    """0 for a multiple of 8, which is fast on GPUs, 1 and 2 for one of 4 and 2, and 3 for an odd one."""
    return next((rank for rank, step in enumerate((8, 4, 2)) if width % step == 0), 3)

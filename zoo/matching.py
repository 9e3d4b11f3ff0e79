"""Matching: the widths that give a model as many parameters, FLOPs or bytes of decode state as the plain transformer.

The reference is the plain transformer of the same d_model, heads and depth (pattern F, residual add, SwiGLU of its
default width). Numbers agree within 1 %, or the model is refused with what is possible.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator

from zoo import cost
from zoo.config import LayerMixer, ModelConfig, architecture_of, from_dict, mixers_of
from zoo.errors import UserError, unknown
from zoo.model import on_meta

# The reference, and how close a match is.

TOLERANCE = 0.01
"""The relative difference up to which two numbers are matched."""


def plain_transformer(config: ModelConfig) -> ModelConfig:
    """The plain transformer of a configuration's d_model, heads and depth."""
    return ModelConfig(
        d_model=config.d_model,
        n_heads=config.n_heads,
        depth=architecture_of(config).depth,
        backend=config.backend,
    )


def with_options(config: ModelConfig, part: str, block: str, **options: int) -> ModelConfig:
    """The configuration with other options of a block; part: "mixers", "variants", "residual" or "channel"."""
    if part == "variants":
        changed = {**config.variants[block], **options}
        return dataclasses.replace(config, variants={**config.variants, block: changed})
    node = getattr(config, part)
    changed = dataclasses.replace(getattr(node, block), **options)
    return dataclasses.replace(config, **{part: dataclasses.replace(node, **{block: changed})})


# Parameters or FLOPs: by the hidden width of the channel mixer.

CLOSE = 0.005
"""The relative error below which a width divisible by 8 (fast on GPUs) is taken; then one divisible by 4, by 2."""

_FEW, _MORE = 8, 16
_VOCAB = 8


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number to make equal. of(config): it, linear in the hidden width; name: as in match=NAME; unit: in words."""

    name: str
    unit: str
    of: Callable[[ModelConfig], float]


def match_parameters(config: ModelConfig, seq_len: int) -> ModelConfig:
    """The configuration with the hidden width at which parameters beside embedding and head are the transformer's."""
    unit = "parameters beside its embedding"
    return _match(config, Quantity("params", unit, lambda model: _counted(model, seq_len)))


def match_flops(config: ModelConfig, seq_len: int, length: int) -> ModelConfig:
    """The configuration with the hidden width at which a token's forward FLOPs at `length` are the transformer's.

    The LM head is left out: it is the same in all of them, and with it 1 % would be less strict.
    """
    unit = f"forward FLOPs a token at {length:,} tokens, LM head left out"
    return _match(config, Quantity("flops", unit, lambda model: _counted(model, seq_len, length)))


def _match(config: ModelConfig, quantity: Quantity) -> ModelConfig:
    name, *others = dict.fromkeys(block.name for block in architecture_of(config).channels)
    if others:
        raise UserError(
            f"match={quantity.name} sets the hidden width of one channel mixer, and "
            f"channel.name={config.channel.name} has several; leave out one of the two"
        )
    options = getattr(config.channel, name)
    if not hasattr(options, "hidden"):
        raise UserError(
            f"match={quantity.name} sets channel.{name}.hidden, which {name} does not have; leave match out"
        )

    def with_hidden(width: int) -> ModelConfig:
        return with_options(config, "channel", name, hidden=width)

    target = quantity.of(plain_transformer(config))
    few, more = (quantity.of(with_hidden(width)) for width in (_FEW, _MORE))
    each = (more - few) / (_MORE - _FEW)
    none = few - _FEW * each
    width = _width((target - none) / each, lambda w: abs((none + each * w) / target - 1))
    if width is None:
        reason = _reason_for_no_width(name, quantity.unit, target, none, each)
        advice = _advice(with_hidden(1), quantity, target)
        raise UserError(f"match={quantity.name}: {reason}; {advice}, or set match=null")
    if options.hidden not in (None, width):
        raise UserError(
            f"match={quantity.name} needs channel.{name}.hidden={width}, not {options.hidden}; "
            "leave out one of the two"
        )
    return with_hidden(width)


def _width(ideal: float, error: Callable[[int], float]) -> int | None:
    """The nearest width to `ideal` that is a multiple of 8, 4, 2 or 1 and close enough, if there is one."""
    for step in (8, 4, 2, 1):
        width = max(step, round(ideal / step) * step)
        if error(width) <= (CLOSE if step > 1 else TOLERANCE):
            return width
    return None


def _reason_for_no_width(name: str, unit: str, target: float, none: float, each: float) -> str:
    """The reason why no width fits: the model is too large even with the narrowest, or one unit is too coarse."""
    least = none + each
    nearest = max(1, round((target - none) / each))
    found = none + nearest * each
    possible = (
        f"the nearest is {found:,.0f} ({found / target - 1:+.1%}), with channel.{name}.hidden={nearest}"
    )
    if least > target:
        return (
            f"with the narrowest {name} the model has {least:,.0f} {unit}, and the transformer to match has "
            f"{target:,.0f}; {possible}"
        )
    return (
        f"one unit of {name}'s hidden width is {each / target:.1%} of the {target:,.0f} {unit}, too coarse to come "
        f"within 1 %; {possible}"
    )


def _advice(narrowest: ModelConfig, quantity: Quantity, target: float) -> str:
    """Return what would make a match possible: an option of a mixer that saves enough work, or a wider model."""
    for mixer in {mixer.word: mixer for mixer in architecture_of(narrowest).mixers}.values():
        for option in mixer.block.cls.work_options:
            one, two = (
                quantity.of(with_options(narrowest, *mixer.key.split("."), **{option: value}))
                for value in (1, 2)
            )
            most = int(1 + (target - one) / (two - one)) if two > one else 0
            if most >= 1:
                return f"set {mixer.key}.{option} to {most} or less, choose a wider model"
    return "choose a wider model or fewer options"


def _counted(config: ModelConfig, seq_len: int, length: int | None = None) -> float:
    """Parameters, or FLOPs a token where a length is given."""
    return _cached(json.dumps(dataclasses.asdict(config), sort_keys=True), seq_len, length)


@functools.lru_cache(maxsize=1024)
def _cached(config_json: str, seq_len: int, length: int | None) -> float:
    """The count without embedding and head, cached: the cells of a sweep differ mostly in their seeds."""
    config = from_dict(ModelConfig, json.loads(config_json))
    model = on_meta(config, vocab_size=_VOCAB, seq_len=seq_len)
    if length is None:
        return cost.parameters_non_embedding(model)
    return cost.flops_per_token(model, length) - 2 * config.d_model * _VOCAB


# Decode state of single layers, and the widths at which it comes near a given size.

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
        return getattr(self.mixer(letter).options, option)

    def solved(self, letter: str) -> tuple[str, ...]:
        """The options that the state's size is solved by; none where it has one size."""
        return self.mixer(letter).block.cls.state_options

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
        if heads is None or not hasattr(self.mixer(letter).options, "n_heads"):
            return
        for other in range(max(1, heads // 2), 2 * heads + 1):
            yield {"n_heads": other}, 8 * abs(other - heads)

    def _bytes(self, letter: str, options: Iterable[tuple[str, int]]) -> int:
        return cost.state_bytes(self._model(letter, dict(options)), self.length)

    def _model(self, letter: str, options: dict[str, int]):
        one = dataclasses.replace(self.config, pattern=letter, depth=1)
        one = with_options(one, *self.mixer(letter).key.split("."), **options)
        return on_meta(one, vocab_size=8, seq_len=self.seq_len)

    def mixer(self, letter: str) -> LayerMixer:
        """The mixer of that letter."""
        return mixers_of(self.config)[letter]


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


# Decode state: by the head widths of the mixers.

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
        self.config, self.length, self.letters = config, length, architecture_of(config).words
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
            config = with_options(config, *self._key(letter).split("."), **choice.options)
        return config

    def refuse_what_cannot_be_solved(self) -> None:
        """Raise UserError where no layer's state can be chosen, and where a width to solve for is given."""
        reference = f"the transformer's has {self.target:,} bytes after {self.length:,} tokens"
        if not self.free:
            names = " and ".join(sorted({self.states.mixer(letter).name for letter in self.letters}))
            raise UserError(
                f"match=state: the decode state of {names} is {self.fixed:,} bytes whatever the widths, and "
                f"{reference}; add layers whose state can be sized (job=list), or set match=null"
            )
        for letter in self.free:
            option = self.states.solved(letter)[0]
            given = self.states.given(letter, option)
            if given is not None:
                raise UserError(
                    f"match=state sets {self._key(letter)}.{option}, and {given} gives {self.total():,} bytes of "
                    f"decode state where {reference}; leave out one of the two"
                )

    def why_not(self, nearest: Combination) -> str:
        """Say what is possible where no combination is within the tolerance."""
        options = ", ".join(
            f"{self._key(letter)}.{option}={value}"
            for letter, choice in zip(self.free, nearest, strict=True)
            for option, value in choice.options.items()
        )
        total = self.total(nearest)
        return (
            f"match=state: no head widths bring the decode state after {self.length:,} tokens within 1 % of the "
            f"transformer's {self.target:,} bytes; the nearest is {total:,} ({total / self.target - 1:+.1%}), with "
            f"{options}; choose another match_length, or set match=null"
        )

    def _key(self, letter: str) -> str:
        return self.states.mixer(letter).key


__all__ = ["MATCHES", "match", "match_flops", "match_parameters", "match_state"]

MATCHES = ("params", "flops", "state", "state+params", "state+flops")


def match(config: ModelConfig, by: str, *, seq_len: int, length: int | None = None) -> ModelConfig:
    """The configuration with the widths that `by`, one of MATCHES, asks for.

        params   parameters beside the embedding, by the channel mixer's hidden width
        flops    FLOPs of the layers' forward pass, a token of `length`, by the same width
        state    bytes of the decode state after `length` tokens, by the mixers' head widths
        state+…  the state first, and then the other with what is left

    seq_len: the length that the model is configured for; length: None for seq_len. Raises UserError, saying what is
    possible, where no widths come within 1 %, and where the configuration names a width that is not the solved one.
    """
    if by not in MATCHES:
        raise unknown("match", by, MATCHES)
    length = seq_len if length is None else length
    parts = by.split("+")
    if "state" in parts:
        config = match_state(config, seq_len, length)
    if "params" in parts:
        config = match_parameters(config, seq_len)
    if "flops" in parts:
        config = match_flops(config, seq_len, length)
    return config

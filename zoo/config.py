"""The configuration of a model, made from the registry, and the language of its pattern.

`ModelConfig` has a node for every registered block (`mixers.attention`, `residual.add`, `channel.swiglu`), so that any
pattern and any block's options can be named without unions. Only `from_dict`/`to_dict` cross a process border.

A pattern says which sequence mixer each layer uses:

    pattern  = item+            "SF"        two layers, S then F
    item     = atom ["*" n]     "F*14"      fourteen F
    atom     = letter | "{" name "}" | "(" pattern ")"      "(KKKL)*4", "CC(FC)*3", "({local}*3F)*2"

A named layout ("interlaced_sf") stands for its letters. Depth defaults to the pattern's length; a given depth tiles
or cuts the pattern. A name in braces is that of a mixer, {attention} as F, or of a variant: a mixer with options of its
own, which `variants` defines and which has its other options from the mixer's node:

    variants = {"W": {"mixer": "attention", "window": 512}}     pattern "(WWWF)*3"

As a text the layers' mixers are written one after the other, each by its letter or else by its name in braces.
`architecture_of` reads all this once, and has the blocks of every layer.

`channel.name` is a channel mixer, or a pattern of their names in the same language, with "+" between items. Its last
item is repeated up to the depth:

    moe                 in every layer
    swiglu*3+moe        SwiGLU in the first three layers, experts in all others
    (swiglu+moe)        in turn
"""

import dataclasses
import itertools
import re
import string
import typing
from collections.abc import Iterable
from typing import Any

from kernels.dispatch import registered_backends
from zoo import registry
from zoo.errors import UserError, unknown
from zoo.options import added, before_they_existed, check_limits, deciding, fits, limited

# The layouts of the HyperGraph report: eight sparse (S) and six full (F) layers each, and the dense baseline.
LAYOUTS = {
    "baseline": "FFFFFFFFFFFFFF",
    "interlaced_fss": "FSSFSSFSSFSSFF",
    "interlaced_sf": "SFSFSFSFSFSFSS",
    "late_full": "SSSSSSSSFFFFFF",
    "reverse_bookend": "SSSFFFFFFSSSSS",
    "chunked_4s2f": "SSSSFFSSSSFFFF",
    "early_full": "FFFFFFSSSSSSSS",
    "chunked_2f4s": "FFSSSSFFSSSSFF",
    "bookend": "FFFSSSSSSSSFFF",
}

MAX_LAYERS = 4096
MAX_GROUPS = 64
QUOTING = """quote it twice on a command line: 'model.pattern="(SF)*4"'"""

for _package in ("zoo.mixers", "zoo.residuals", "zoo.channels"):
    registry.discover(_package)
registry.discover_own()


def _node(name: str, kind: str, chosen: str | None = None, about: str = "") -> type:
    """A dataclass with a field for each registered block, and a field `name` where one of them is chosen.

    about: its docstring, to which the names of the blocks are added.
    """
    fields: list[Any] = [] if chosen is None else [("name", str, chosen)]
    for block in registry.blocks(kind).values():
        fields.append((block.name, block.config, dataclasses.field(default_factory=block.config)))
    names = ", ".join(f"`{name}`" for name in registry.blocks(kind))
    namespace = {"__reduce__": _as_values, "__doc__": f"{about}{names}."}
    made = dataclasses.make_dataclass(name, fields, namespace=namespace)
    made.__module__ = __name__
    return made


def _as_values(node: Any) -> tuple[Any, ...]:
    """Pickled by its values: a worker that starts while somebody writes a block may know one more or one fewer."""
    return _from_values, (type(node).__name__, dataclasses.asdict(node))


def _from_values(name: str, values: dict[str, Any]) -> Any:
    return from_dict(globals()[name], values, recorded=True)


Mixers = _node("Mixers", "mixer", about="The options of every mixer: ")
ResidualChoice = _node(
    "ResidualChoice", "residual", "add",
    "The residual scheme of a model, and the options of every scheme.\n\n"
    "name: the scheme around every mixer and every channel mixer, one of ",
)  # fmt: skip
ChannelChoice = _node(
    "ChannelChoice", "channel", "swiglu",
    "The channel mixer of a model, and the options of every channel mixer.\n\n"
    "name: the channel mixer of every layer, or a pattern of them whose last item goes on to the last layer, such as "
    "swiglu+moe: the first layer dense; of ",
)  # fmt: skip
_CHOICES = (Mixers, ResidualChoice, ChannelChoice)


@dataclasses.dataclass
class ModelConfig:
    """A language model.

    preset: name in legends (None: named after its pattern); pattern: a mixer per layer, by letter or by name in braces,
    repeated up to the depth, or the name of a layout; variants: mixers with options of their own for the pattern, by
    name, such as {W: {mixer: attention, window: 512}}, all else as in the mixer's node; depth: number of layers (None:
    the pattern's length); d_model: model width; n_heads: heads of every mixer that does not set its own;
    tie_embeddings: the LM head shares the embedding's weights; norm_eps: ε of RMSNorms: the layers', the last, and
    those of heads (norms of latents and L2 norms keep 1e-6); backend: backend of all kernels, in decoding too (varlen
    and flash_attn only serve whole sequences; decoding steps then use "auto"); refused if it does not support the
    model's operations.
    """

    preset: str | None = None
    pattern: str = "F"
    depth: int | None = 4
    d_model: int = limited(64, least=1, most=1 << 17)
    n_heads: int = limited(4, least=1, most=1 << 12)
    tie_embeddings: bool = True
    norm_eps: float = added(1e-6, before=1e-6, above=0)
    backend: str = limited("auto", choices=lambda: ("auto", *registered_backends()))
    mixers: Mixers = dataclasses.field(default_factory=Mixers)  # type: ignore[valid-type]
    residual: ResidualChoice = dataclasses.field(default_factory=ResidualChoice)  # type: ignore[valid-type]
    channel: ChannelChoice = dataclasses.field(default_factory=ChannelChoice)  # type: ignore[valid-type]
    variants: dict[str, Any] = limited({}, before={})


def from_dict(cls: type, values: dict[str, Any], where: str = "model", recorded: bool = False) -> Any:
    """A (nested) config dataclass from plain values.

    recorded: the values come from a record of every option that existed then, so that a missing option was added
    later and takes its `before` value (see zoo.options), and while the file of a block cannot be imported
    (zoo.registry) nodes of unknown blocks are skipped; without it a missing option takes its default.
    Raises UserError for a key that does not exist and for a value of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    out = before_they_existed(cls) if recorded else {}
    for key, value in values.items():
        if key not in known:
            # Perhaps the node of a block that is left out; a model that uses it is refused where it is built.
            if recorded and cls in _CHOICES and registry.left_out():
                continue
            raise unknown(f"key in {where}", key, known)
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, dict):
            value = from_dict(hints[key], value, f"{where}.{key}", recorded)
        elif not fits(value, hints[key]):
            kind = hints[key].__name__ if isinstance(hints[key], type) else hints[key]
            raise UserError(f"{where}.{key}={value!r} must be of type {kind}, not {type(value).__name__}")
        out[key] = value
    return cls(**out)


def used(config: ModelConfig, architecture: "Architecture") -> dict[str, Any]:
    """The options that decide the built model, as plain values: only blocks that the pattern uses, without the backend.

    A run's identity hashes these, so that registering a new block changes no existing run; an option that was
    added to a block later (zoo.options.added) is included only where it differs from its `before` value.
    """
    chosen, channels = architecture.kinds, [block.name for block in architecture.channels]
    written, out = _shortest(channels), deciding(config)
    names = {mixer.name for mixer in chosen}
    out["mixers"] = {name: options for name, options in out["mixers"].items() if name in names}
    out.pop("variants", None)
    variants = sorted((x for x in chosen if x.is_variant), key=lambda x: x.name)
    if variants:
        out["variants"] = {x.name: {"mixer": x.block.name, **deciding(x.options)} for x in variants}
    for part, name, blocks in (
        ("residual", config.residual.name, {config.residual.name}),
        ("channel", written, set(channels)),
    ):
        out[part] = {
            "name": name,
            **{block: values for block, values in out[part].items() if block in blocks},
        }
    out.update(pattern=architecture.letters, depth=architecture.depth)
    for key in ("preset", "backend"):
        del out[key]
    return out


@dataclasses.dataclass(frozen=True)
class LayerMixer:
    """A mixer that a layer may have: a registered one, or a variant of one.

    name, title, color: in tables and figures; block: the registered mixer; options: its options here.
    """

    name: str
    block: registry.Block
    options: Any
    title: str
    color: str

    @property
    def is_variant(self) -> bool:
        """Return whether it has a name and options of its own."""
        return self.name != self.block.name

    @property
    def word(self) -> str:
        """What stands for it in the text of all layers."""
        return registry.word(self.name) if self.is_variant else self.block.word

    @property
    def key(self) -> str:
        """The key of its options inside a model's configuration."""
        return f"variants.{self.name}" if self.is_variant else f"mixers.{self.name}"

    def describe(self) -> dict[str, Any]:
        """Plain values from which a figure draws it, as `Block.describe`; letter: its word in a pattern."""
        whole = self.block.describe()
        if whole["mask"] == "causal" and getattr(self.options, "window", None) is not None:
            whole["mask"] = "window"
        own = {"letter": self.word, "name": self.name, "title": self.title, "color": self.color}
        return {**whole, **own}


def split(letters: str) -> list[str]:
    """The mixer of each layer out of the text of all of them: split("WF{local}") == ["W", "F", "{local}"]."""
    return re.findall(r"\{\w+\}|.", letters)


def mixers_of(config: ModelConfig) -> dict[str, LayerMixer]:
    """Every mixer that a pattern of this configuration may name, variants too, by its word in one.

    Raises UserError for a variant that is none: without a mixer, of a variant, with an option that its mixer lacks.
    """
    blocks = registry.mixer_by_letter().values()
    found = [LayerMixer(x.name, x, getattr(config.mixers, x.name, None), x.title, x.color) for x in blocks]
    before: dict[str, int] = {}
    for name in sorted(config.variants):
        block, options = _variant(config, name)
        before[block.name] = before.get(block.name, 0) + 1
        own = [f"{key} {value}" for key, value in config.variants[name].items() if key != "mixer"]
        title, color = ", ".join([block.title, *own]), _paler(block.color, before[block.name])
        found.append(LayerMixer(name, block, options, title, color))
    return {mixer.word: mixer for mixer in found}


def _variant(config: ModelConfig, name: str) -> tuple[registry.Block, Any]:
    """The mixer of a variant, and its options."""
    key, values = f"model.variants.{name}", config.variants[name]
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)):
        raise UserError(
            f"{key}: a variant's name is a letter, or a word of letters, digits and _; choose another"
        )
    if not isinstance(values, dict) or not isinstance(values.get("mixer"), str):
        raise UserError(
            f"{key}={values} names no mixer; give one and its options, '{key}={{mixer: attention, window: 512}}'"
        )
    base = values["mixer"]
    if base in config.variants and base not in registry.blocks("mixer"):
        raise UserError(
            f"{key}.mixer={base} is a variant itself; name a mixer, {', '.join(registry.blocks('mixer'))}, and give "
            "all options that differ from its own"
        )
    block = registry.get("mixer", base)
    usual, own = getattr(config.mixers, block.name), {k: v for k, v in values.items() if k != "mixer"}
    hints = typing.get_type_hints(block.config)
    for option, value in own.items():
        if option in hints and type(value) is int and fits(0.5, hints[option]):
            own[option] = float(value)  # as in the mixer's own node, so that 10000 and 1e4 are one model
    options = from_dict(block.config, {**vars(usual), **own}, key)
    check_limits(options, f"{key}.")
    return block, options


def check_names(config: ModelConfig) -> None:
    """Raise UserError for a variant whose name or letter is a mixer's.

    A command is checked by it and a recorded model is not: a mixer that came later takes nothing from it.
    """
    taken = {
        name: block for block in registry.blocks("mixer").values() for name in (block.name, block.letter)
    }
    for name in config.variants:
        if name in taken:
            free = [x for x in string.ascii_uppercase if x not in taken and x not in config.variants]
            raise UserError(
                f"model.variants.{name}: {name} is the mixer {taken[name].name}; give the variant another name, a free "
                f"letter ({', '.join(free)}) or a word"
            )


def _paler(color: str, steps: int) -> str:
    """The colour mixed with white, more so for further variants of a mixer."""
    white = 1 - 0.62**steps
    return "#" + "".join(
        f"{round((1 - white) * int(color[i : i + 2], 16) + white * 255):02X}" for i in (1, 3, 5)
    )


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The blocks of a model, layer by layer (`architecture_of`).

    mixers, channels: those of each layer, from the first; residual: the scheme around all of them.
    """

    mixers: tuple[LayerMixer, ...]
    channels: tuple[registry.Block, ...]
    residual: registry.Block

    @property
    def words(self) -> list[str]:
        """The mixer of each layer by its word in a pattern: "W", "F", "{local}"."""
        return [mixer.word for mixer in self.mixers]

    @property
    def letters(self) -> str:
        """The words as one text, "WF{local}"."""
        return "".join(self.words)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.mixers)

    @property
    def kinds(self) -> list[LayerMixer]:
        """Its mixers, each once, by their words in alphabetical order."""
        return list({mixer.word: mixer for mixer in sorted(self.mixers, key=lambda x: x.word)}.values())

    @property
    def layout(self) -> str | None:
        """The name of the layout that its mixers are, if any."""
        return layout_name(self.letters)

    @property
    def named_after(self) -> LayerMixer:
        """The mixer that the model is named after: the most frequent one that is not plain attention."""
        others = [mixer for mixer in self.kinds if mixer.word != "F"] or self.kinds
        return max(others, key=lambda mixer: self.words.count(mixer.word))

    @property
    def color(self) -> str:
        """The colour of the model in every figure, #rrggbb: of the mixer that it is named after."""
        if set(self.words) == {"F"}:  # plain attention in several streams is known by its streams
            return self.residual.color
        return self.named_after.color

    @property
    def blocks(self) -> list[registry.Block]:
        """The registered blocks that it is made of: mixers, the residual scheme, channel mixers."""
        channels = {block.name: block for block in self.channels}
        return [*(x.block for x in self.kinds), self.residual, *(channels[name] for name in sorted(channels))]


def architecture_of(config: ModelConfig) -> Architecture:
    """The blocks of all layers of a model. Raises UserError for a pattern or a name that cannot be read."""
    known = mixers_of(config)
    try:
        words = split(read_pattern(config.pattern, config.depth, known))
    except UserError as error:  # perhaps a letter of a mixer whose file cannot be imported
        raise UserError("; ".join([str(error), *registry.left_out()])) from None
    channels = [registry.get("channel", name) for name in read_channels(config.channel.name, len(words))]
    residual = registry.get("residual", config.residual.name)
    return Architecture(tuple(known[word] for word in words), tuple(channels), residual)


def read_pattern(pattern: str, depth: int | None, known: Iterable[str]) -> str:
    """The mixers of all layers as one text, e.g. read_pattern("SF", 3, "FS") == "SFS".

    pattern: in the language above, or the name of a layout; depth: number of layers, None for the pattern's own
    length; known: the words that there are (`mixers_of`). Raises UserError naming the letter, its position and the
    known ones.
    """
    known = list(known)
    words = split(LAYOUTS.get(pattern, "")) or [
        *itertools.chain(*_Parser(_checked(pattern, known), known).parse())
    ]
    if depth is not None:
        if not 1 <= depth <= MAX_LAYERS:
            raise UserError(f"model.depth must be from 1 to {MAX_LAYERS}, not {depth}")
        words = (words * -(-depth // len(words)))[:depth]
    return "".join(words)


def read_channels(name: str, depth: int) -> list[str]:
    """The channel mixer of each of `depth` layers, of `channel.name`: read_channels("swiglu+moe", 3) has moe twice.

    Raises UserError for a pattern that cannot be read and for a name that is not registered.
    """
    units = _ChannelParser(name).parse() or [[registry.get("channel", name).name]]
    names = [block for unit in units for block in unit]
    names += [units[-1][i % len(units[-1])] for i in range(depth - len(names))]
    return names[:depth]


def _shortest(channels: list[str]) -> str:
    """The shortest of the patterns in which runs of layers follow each other, equal for equal models."""
    runs = [(name, len(list(run))) for name, run in itertools.groupby(channels)]
    *before, (last, _) = runs
    return "+".join([*(name if n == 1 else f"{name}*{n}" for name, n in before), last])


def layout_name(pattern: str) -> str | None:
    """The name of the layout that a pattern names or spells out in letters, if any."""
    if pattern in LAYOUTS:
        return pattern
    return next(
        (name for name, letters in LAYOUTS.items() if letters == pattern and name != "baseline"), None
    )


def _checked(pattern: str, known: list[str]) -> str:
    if not isinstance(pattern, str) or not pattern.strip():
        raise UserError(
            f"model.pattern is empty; give mixer letters ({', '.join(known)}), e.g. model.pattern=SF"
        )
    if set(pattern.upper()) <= {*known, *"()*0123456789"} and pattern != pattern.upper():
        raise UserError(
            f"model.pattern={pattern}: mixer letters are capitals; did you mean {pattern.upper()}? "
            f"Known letters: {', '.join(known)}"
        )
    if "{" not in pattern and ("_" in pattern or (pattern.islower() and pattern.isalpha())):
        raise UserError(
            f"{unknown('layout', pattern, LAYOUTS)}. A pattern of your own is made of mixer letters: "
            f"{', '.join(known)} (job=list names them), e.g. model.pattern=F*4"
        )
    return pattern


class _Parser:
    """Recursive descent over one pattern; positions in messages count from 1. known: the words that there are."""

    key = "model.pattern"

    def __init__(self, text: str, known: list[str]) -> None:
        self.text, self.known, self.at, self.depth = text, known, 0, 0

    def parse(self) -> list[list[str]]:
        """The blocks of each item of the pattern."""
        out = self._items()
        if self.at < len(self.text):  # only an unmatched ")" stops the items early
            raise self._error("has no matching '('")
        return out

    def _items(self) -> list[list[str]]:
        out: list[list[str]] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if out:
                self._separate()
            out.append(self._item())
            if sum(map(len, out)) > MAX_LAYERS:
                raise UserError(f"{self.key}={self.text} has more than {MAX_LAYERS} layers")
        return out

    def _separate(self) -> None:
        """Read what stands between two items: nothing."""

    def _item(self) -> list[str]:
        unit = self._atom()
        if self._peek() != "*":
            return unit
        self.at += 1
        return unit * self._number()

    def _atom(self) -> list[str]:
        if self._peek() == "(":
            start = self.at
            self.depth += 1
            if self.depth > MAX_GROUPS:
                raise self._error(f"is nested more than {MAX_GROUPS} deep")
            self.at += 1
            inner = self._items()
            self.depth -= 1
            if self._peek() != ")":
                self.at = start
                raise self._error("is never closed")
            self.at += 1
            if not inner:
                self.at = start
                raise self._error("opens an empty group")
            return [block for item in inner for block in item]
        return [self._name()]

    def _name(self) -> str:
        if braced := re.match(r"\{(\w*)\}", self.text[self.at :]):
            name = braced[1]
            block = registry.blocks("mixer").get(name)
            words = (registry.word(name), block.word if block else "")
        else:
            words = (self._peek(),)
        for word in words:
            if word in self.known:
                self.at += len(braced[0]) if braced else 1
                return word
        if self._peek() == "{" and not braced:
            raise self._error("opens a name that is never closed, as {attention} is")
        raise self._error("is not a known mixer", braced[0] if braced else None)

    def _number(self) -> int:
        start = self.at
        while self._peek() in "0123456789":
            self.at += 1
        digits = self.text[start : self.at]
        if not digits or len(digits) > 9 or not 0 < int(digits) <= MAX_LAYERS:
            self.at = start - 1
            raise self._error(f"must be followed by a number from 1 to {MAX_LAYERS}")
        return int(digits)

    def _peek(self) -> str:
        # A character no pattern can hold, so that the end needs no special case (and "" is not "in" everything).
        return self.text[self.at] if self.at < len(self.text) else "\0"

    def _error(self, what: str, here: str | None = None) -> UserError:
        here = here or self._peek().replace("\0", "end")
        return UserError(f"{self.key}={self.text}: '{here}' at position {self.at + 1} {what}. {self._help()}")

    def _help(self) -> str:
        return f"Known letters: {', '.join(self.known)}; repeat with F*14, group with (SF)*4 ({QUOTING})"


class _ChannelParser(_Parser):
    """Names with "+" between items in the place of letters."""

    key = "model.channel.name"

    def __init__(self, text: str) -> None:
        super().__init__(text, [])

    def _separate(self) -> None:
        if self._peek() != "+":
            raise self._error("needs a + before it")
        self.at += 1

    def _name(self) -> str:
        word = re.match(r"\w*", self.text[self.at :]).group()
        if not word:
            raise self._error("is not a channel mixer")
        self.at += len(word)
        return registry.get("channel", word).name

    def _help(self) -> str:
        known = ", ".join(registry.blocks("channel"))
        return f"Known names: {known}; follow with swiglu+moe, repeat with swiglu*3+moe, alternate with (swiglu+moe)"

"""job=cost: parameters, FLOPs a token, stream and decode-state bytes of a model, derived from the built module.

A row at length T is of a model configured for T (data.seq_len=T), as rules that depend on the configured length,
such as how many tokens a sparse mixer keeps, would have it.
"""

from __future__ import annotations

from experiments.configuration.compose import label, short_labels, shorten_pattern
from experiments.configuration.schema import Config
from experiments.costs.model_costs import FlopCount, count_flops
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.planning.plan import apply_match, check_served
from zoo import cost
from zoo.config import architecture_of
from zoo.errors import UserError
from zoo.model import LanguageModel, meta_model

FOOTNOTE = (
    "A multiply-add is two FLOPs; dense attention counts all T×T scores; routing is taken as balanced.\n"
    "Counted are matrix products and attention. Elementwise work (norms, gates, scans written elementwise) and short\n"
    "convolutions are not.\n"
    "Decode-state bytes are of one sequence, in fp32; a row at T is of a model configured for T tokens.\n"
    "Stream bytes are what a token carries from one layer to the next, in fp32."
)
EXTRAPOLATED = (
    "~ extrapolated from shorter lengths, up to {} tokens, where total FLOPs are a polynomial of T."
)


def run(config: Config) -> None:
    """Print the costs of the configured model; needs no data and no memory for weights."""
    config = _checked(config)
    model = meta_model(config.model, **config.sizes)
    layers = model.architecture
    print(f"model: {label(config, layers)}")
    print(
        f"layers: {shorten_pattern(layers.letters)}{f' (layout {layers.layout})' if layers.layout else ''}, "
        f"d_model {config.model.d_model}"
    )
    print(f"parameters: {cost.parameters(model)}")
    print(f"parameters without embedding and head: {cost.parameters_non_embedding(model)}")
    print(f"vocabulary: {model.vocab_size}")
    print(
        f"streams from layer to layer: {model.streams.carried()} of width {config.model.d_model}, "
        f"{cost.stream_bytes(model)} bytes a token"
    )
    print("\n  tokens   forward FLOPs/token   training FLOPs/token   decode-state bytes")
    notes = _Notes()
    for length in config.cost.lengths:
        model = at_length(config, length)
        forward, training = _flops(model, length), _flops(model, length, backward=True)
        notes.add(length, forward, training)
        print(
            f"{length:8d}   {_mark(length, forward) + f'{forward.per_token:.6g}':>19}   "
            f"{_mark(length, training) + f'{training.per_token:.6g}':>20}   {cost.state_bytes(model, length):18d}",
            flush=True,
        )
    notes.print()
    if config.cost.memory:
        print_memory(config)


def print_memory(config: Config) -> None:
    """Print the bytes that training needs on a device, part by part."""
    from experiments.costs.device_memory import FOOTNOTE, device_memory

    t, d = config.trainer, config.data
    memory = device_memory(config, pick_device(config.device))
    print(
        f"\nmemory of training on each of {t.devices * t.nodes} devices, {memory.strategy}, {memory.precision}:"
    )
    print(f"micro-batches of {d.batch_size} x {d.seq_len} tokens, recompute={t.recompute}\n")
    for name, size in memory.parts().items():
        print(f"  {name:<12} {size / 1e9:10.3f} GB")
    print(f"  {'total':<12} {memory.total / 1e9:10.3f} GB\n\n{FOOTNOTE}")


def run_sweep(configs: list[Config]) -> None:
    """Print the costs of several models as one Markdown table: FLOPs of the forward pass."""
    configs = [_checked(config) for config in configs]
    lengths = configs[0].cost.lengths
    if any(config.cost.lengths != lengths for config in configs):
        raise UserError(
            "cost.lengths cannot be swept: a table has one set of columns; give all lengths as a list, "
            "cost.lengths=[1024,8192]"
        )
    if any(config.cost.memory for config in configs):
        raise UserError(
            "cost.memory=true works for one model at a time; leave it out of the sweep, or run one command per model"
        )
    head = ["model", "layers", "parameters", "streams"]
    head += [f"FLOPs/token at {short(n)}" for n in lengths] + [f"state at {short(n)}" for n in lengths]
    print(f"| {' | '.join(head)} |\n|{'---|' * 2}{'---:|' * (len(head) - 2)}")
    notes = _Notes()
    for config, title in zip(configs, _titles(configs), strict=True):
        print(f"| {' | '.join([f'`{title}`', *table_row(config, notes)])} |", flush=True)
    notes.print()


def table_row(config: Config, notes: _Notes | None = None) -> list[str]:
    """A model's layers, parameters and stream bytes, and at every length FLOPs a token and state bytes, as text."""
    flops, states = [], []
    for length in config.cost.lengths:
        model = at_length(config, length)
        count = _flops(model, length)
        if notes is not None:
            notes.add(length, count)
        flops.append(_mark(length, count) + _millions(count.per_token))
        states.append(format_bytes(cost.state_bytes(model, length)))
    model = meta_model(config.model, **config.sizes)
    numbers = [f"{cost.parameters(model):,}", format_bytes(cost.stream_bytes(model))]
    return [shorten_pattern(model.letters), *numbers, *flops, *states]


def at_length(config: Config, length: int) -> LanguageModel:
    """The model without storage, configured for sequences of `length` tokens."""
    return meta_model(config.model, vocab_size=config.nominal_vocabulary, seq_len=length)


def format_bytes(size: int) -> str:
    """Bytes with a unit: 8192 -> "8.0 KiB"; in MiB from a tenth of one on, so that columns compare."""
    if size >= 2**20 / 10:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**10:,.1f} KiB" if size >= 2**10 else f"{size} B"


def short(length: int) -> str:
    """A length in short: 131072 -> "128K"."""
    return f"{length // 1024}K" if length % 1024 == 0 else str(length)


class _Notes:
    """The lines below the numbers: what they count, and whether some were extrapolated."""

    def __init__(self) -> None:
        self.counted_to = 0

    def add(self, length: int, *counts: FlopCount) -> None:
        self.counted_to = max([self.counted_to, *(c.counted_to for c in counts if c.counted_to < length)])

    def print(self) -> None:
        print(f"\n{FOOTNOTE}")
        if self.counted_to:
            print(EXTRAPOLATED.format(self.counted_to))


def _titles(configs: list[Config]) -> list[str]:
    """The models' presets or dominant mixers; where those are not all different, what tells them apart too."""
    labels = short_labels([(config, architecture_of(config.model)) for config in configs])
    heads = [name.split()[0] for name in labels]
    return heads if len(set(heads)) == len(heads) else labels


def _mark(length: int, count: FlopCount) -> str:
    return "~" if count.counted_to < length else ""


def _flops(model: LanguageModel, length: int, *, backward: bool = False) -> FlopCount:
    try:
        return count_flops(model, length, backward=backward)
    except ValueError as error:  # a kernel's: the backend that was asked for cannot serve
        raise UserError(f"model.backend={model.config.backend}: {error}; use model.backend=auto") from error


def _millions(x: float) -> str:
    return f"{x / 1e6:,.0f} M" if x >= 1e8 else f"{x / 1e6:.3g} M"


def _checked(config: Config) -> Config:
    """The configuration with its widths matched. Raises UserError for lengths and choices that make no sense."""
    if not config.cost.lengths:
        raise UserError("cost.lengths is empty; give a sequence length, or leave it out")
    check_served(config, None)
    return apply_match(config)


JOB = Job(
    "cost",
    "count parameters, FLOPs per token, stream and decode-state bytes of a model",
    run,
    run_sweep=run_sweep,
)

"""job=cost: parameters, FLOPs a token and decode-state bytes of a model, derived from the built module.

A row at length T is of a model configured for T (data.seq_len=T), as rules that depend on the configured length,
such as how many tokens a sparse mixer keeps, would have it.
"""

from __future__ import annotations

import dataclasses

from experiments.plan import check_choices, label, matched, meta_model, shorten
from experiments.schema import Config
from zoo import cost, pattern
from zoo.errors import UserError
from zoo.model import LanguageModel, letters_of

FOOTNOTE = (
    "A multiply-add is two FLOPs; dense attention counts all T×T scores; routing is taken as balanced.\n"
    "Decode-state bytes are of one sequence, in fp32; a row at T is of a model configured for T tokens."
)


def run(config: Config) -> None:
    """Print the costs of the configured model; needs no data and no memory for weights."""
    config = _checked(config)
    model = meta_model(config)
    letters = letters_of(config.model)
    layout = pattern.layout_name(letters)
    print(f"model: {label(config, letters)}")
    print(
        f"layers: {shorten(letters)}{f' (layout {layout})' if layout else ''}, d_model {config.model.d_model}"
    )
    print(f"parameters: {cost.parameters(model)}")
    print(f"parameters without embedding and head: {cost.parameters_non_embedding(model)}")
    print(f"vocabulary: {model.vocab_size}")
    print("\n  tokens   forward FLOPs/token   training FLOPs/token   decode-state bytes")
    for length in config.cost.lengths:
        model = at_length(config, length)
        forward, training = _flops(model, length), _flops(model, length, backward=True)
        print(f"{length:8d}   {forward:19.6g}   {training:20.6g}   {cost.state_bytes(model, length):18d}")
    print(f"\n{FOOTNOTE}")


def compare(configs: list[Config]) -> None:
    """Print the costs of several models as one Markdown table: FLOPs of the forward pass."""
    configs = [_checked(config) for config in configs]
    lengths = configs[0].cost.lengths
    head = ["model", "layers", "parameters"]
    head += [f"FLOPs/token at {short(n)}" for n in lengths] + [f"state at {short(n)}" for n in lengths]
    print(f"| {' | '.join(head)} |\n|{'---|' * 2}{'---:|' * (len(head) - 2)}")
    for config in configs:
        print(f"| {' | '.join(cells(config))} |", flush=True)
    print(f"\n{FOOTNOTE}")


def cells(config: Config) -> list[str]:
    """One model's row: its label, layers and parameters, FLOPs a token and state bytes at every length."""
    letters = letters_of(config.model)
    models = [at_length(config, n) for n in config.cost.lengths]
    pairs = list(zip(models, config.cost.lengths, strict=True))
    flops = [_millions(_flops(model, n)) for model, n in pairs]
    states = [f"{cost.state_bytes(model, n) / 2**20:,.1f} MiB" for model, n in pairs]
    title = label(config, letters).split()[0]
    return [f"`{title}`", shorten(letters), f"{cost.parameters(meta_model(config)):,}", *flops, *states]


def at_length(config: Config, length: int) -> LanguageModel:
    """The model without storage, configured for sequences of `length` tokens."""
    return meta_model(dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=length)))


def _flops(model: LanguageModel, length: int, *, backward: bool = False) -> float:
    try:
        return cost.flops_per_token(model, length, backward=backward)
    except ValueError as error:  # a kernel's: the backend that was asked for cannot serve
        raise UserError(f"model.backend={model.config.backend}: {error}; use model.backend=auto") from error


def _millions(x: float) -> str:
    return f"{x / 1e6:,.0f} M" if x >= 1e8 else f"{x / 1e6:.3g} M"


def short(length: int) -> str:
    """131072 -> "128K"."""
    return f"{length // 1024}K" if length % 1024 == 0 else str(length)


def _checked(config: Config) -> Config:
    if not config.cost.lengths or min(config.cost.lengths) < 1:
        raise UserError(f"cost.lengths={config.cost.lengths} must name sequence lengths of at least 1")
    if config.data.seq_len < 1:
        raise UserError(f"data.seq_len={config.data.seq_len} must be at least 1")
    check_choices(config)
    return matched(config)

"""job=cost: parameters, FLOPs a token and decode-state bytes of a model, derived from the built module."""

from __future__ import annotations

from experiments.plan import label, meta_model, shorten
from experiments.schema import Config
from zoo import cost, pattern
from zoo.errors import UserError
from zoo.model import letters_of


def run(config: Config) -> None:
    """Print the costs of the configured model; needs no data and no memory for weights."""
    if not config.cost.lengths or min(config.cost.lengths) < 1:
        raise UserError(f"cost.lengths={config.cost.lengths} must name sequence lengths of at least 1")
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
        forward = cost.flops_per_token(model, length)
        training = cost.flops_per_token(model, length, backward=True)
        print(f"{length:8d}   {forward:19.6g}   {training:20.6g}   {cost.state_bytes(model, length):18d}")
    print(
        "\nA multiply-add is two FLOPs; causal attention counts all T×T scores; routing is taken as balanced."
    )

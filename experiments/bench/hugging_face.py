"""The same model in the package transformers, beside ours: its prompts read, its tokens decoded."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.bench.model_steps import tensors_in
from zoo.generate import prefill
from zoo.model import LanguageModel
from zoo.pretrained.families import Family, family_of
from zoo.pretrained.writing import write_folder

# A model with the weights of one of ours.

LONGEST = 2**20
"""Positions that a model of transformers is made for: it stores nothing for them."""


def in_transformers(model: LanguageModel, family: Family) -> nn.Module:
    """The family's model in transformers, in fp32, by a folder that is written and read."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "model")
        write_folder(model, place, family=family.model_type)
        options = {"dtype": torch.float32, "attn_implementation": "sdpa", "max_position_embeddings": LONGEST}
        return AutoModelForCausalLM.from_pretrained(place, **options).eval()


# Reading a prompt, and decoding from a cache of any length.

CHECKED, SEED = 48, 0
"""Tokens on which both must agree before they are timed, and the seed that draws them."""

CLOSE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""The largest error of logits, relative to theirs in the root mean square, by the precision of matrix products."""
BEGUN = 8
"""Tokens that are read for the layout of a cache, which is then made longer."""
CACHE_NAMES = ("cache", "past_key_values")
"""What a forward takes its cache by and returns it by: since version 5.24, and before."""


class NoPeer(Exception):
    """A model cannot be compared with transformers here; the message says why."""


class Peer:
    """A model of transformers with the weights of ours. Raises NoPeer where there is none that computes the same.

    precision: of the autocast that both are used under.
    """

    def __init__(self, model: LanguageModel, precision: torch.dtype) -> None:
        family, reason = family_of(model)
        if family is None:
            raise NoPeer(f"transformers has no such architecture ({reason})")
        self.family = family.architecture.removesuffix("ForCausalLM")
        device = model.embedding.weight.device
        try:
            self.model = in_transformers(model, family).to(device)
        except ImportError as error:
            raise NoPeer(f"transformers cannot be imported here ({error}); pip install '.[peers]'") from error
        self.cache_name = _cache_name(self.model)
        _check_logits(model, self, precision)

    @torch.no_grad()
    def prefill(self, tokens: Tensor) -> tuple[Tensor, Any]:
        """Read prompts int64 [B, T]: (logits after the last token [B, V], the cache).

        Raises NoPeer for a cache of another kind than `DynamicCache`.
        """
        out = self.model(input_ids=tokens, use_cache=True, logits_to_keep=1)
        cache = getattr(out, self.cache_name)
        if not hasattr(cache, "layers"):
            raise NoPeer(
                f"its cache of kind {type(cache).__name__} has no layers; pip install 'transformers>=5.5'"
            )
        return out.logits[:, -1], cache

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: Any) -> Tensor:
        """One token a sequence: tokens int64 [B] -> logits [B, V]; the cache grows."""
        past = {self.cache_name: cache}
        out = self.model(input_ids=tokens[:, None], use_cache=True, logits_to_keep=1, **past)
        return out.logits[:, -1]

    def cache_after(self, tokens: int, batch: int) -> Any:
        """The cache after so many tokens, whose keys and values are zeros but for the last ones."""
        device = next(self.model.parameters()).device
        begun = torch.zeros(batch, min(BEGUN, tokens), dtype=torch.int64, device=device)
        _, cache = self.prefill(begun)
        for layer in cache.layers:
            if getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = (_lengthen(x, tokens) for x in (layer.keys, layer.values))
        return cache

    def state_bytes(self, tokens: int, batch: int) -> int:
        """Bytes of the cache after so many tokens, from those of two short ones: it grows by as many for each."""
        one, two = (
            sum(x.nbytes for x in tensors_in(self.cache_after(n, 1).layers)) for n in (BEGUN, 2 * BEGUN)
        )
        return batch * (one + (two - one) * (tokens - BEGUN) // BEGUN)


def _cache_name(model: nn.Module) -> str:
    """The name that a model has for its cache. Raises NoPeer where it lacks a word of ours: it would drop it unsaid."""
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_NAMES if name in takes), " or ".join(CACHE_NAMES))
    if missing := [word for word in ("input_ids", "use_cache", "logits_to_keep", name) if word not in takes]:
        raise NoPeer(f"{type(model).__name__}.forward of this transformers takes no {', '.join(missing)}")
    return name


def _lengthen(x: Tensor, tokens: int) -> Tensor:
    """x [B, H, n, width] behind so many rows of zeros that they are `tokens`, written to memory of its own."""
    # `zeros` alone would map all of them to one page, which stays in the fastest cache.
    longer = x.new_empty(*x.shape[:2], tokens, x.shape[3]).zero_()
    longer[:, :, tokens - x.shape[2] :] = x
    return longer


def _check_logits(model: LanguageModel, peer: Peer, precision: torch.dtype) -> None:
    """Raise NoPeer unless logits after a prompt and after one more token are the same."""
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(model.vocab_size, (2, CHECKED), generator=generator).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        logits, state = prefill(model, list(tokens[:, :-1]), room=1)
        wanted, cache = peer.prefill(tokens[:, :-1])
        pairs = [(logits, wanted), (model.step(tokens[:, -1], state)[0], peer.step(tokens[:, -1], cache))]
    for ours, theirs in pairs:
        error = float((ours - theirs).float().norm() / theirs.float().norm())
        if not error <= CLOSE[precision]:
            raise NoPeer(f"its {peer.family} in transformers has other logits: relative error {error:.2g}")

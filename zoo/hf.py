"""Models of this project as classes of transformers, model_type="archzoo": config, model, and generation.

    import zoo.hf                                             # registers them
    model = AutoModelForCausalLM.from_pretrained(FOLDER)      # a folder that job=export wrote

The decode state is the cache, whatever it is made of. Batches padded on the left are computed as their rows alone would
be; padding anywhere else, packed positions and caches of another kind are refused.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.cache_utils import Cache
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise UserError(f"zoo.hf needs transformers 5.5 or later ({error}); pip install -e '.[hf]'") from error

from zoo.interfaces import Residual, restore
from zoo.io import build
from zoo.model import DecodeState, LanguageModel
from zoo.modules import ShortConvolution
from zoo.modules.caches import join_states, select_sequences
from zoo.pretrained.writing import LOADER, LOADER_TEXT

CACHE = next(
    f.name for f in dataclasses.fields(CausalLMOutputWithPast) if f.name in ("cache", "past_key_values")
)
"""What transformers calls a cache: `cache` from 5.24 on, `past_key_values` before."""

OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits")
"""What a caller may ask for and this class does not give."""


class ArchzooConfig(PreTrainedConfig):
    """archzoo: the model's description, as model.json of a run has it (zoo.io.card)."""

    model_type = "archzoo"

    def __init__(self, archzoo: dict[str, Any] | None = None, **more: Any) -> None:
        self.archzoo = archzoo
        super().__init__(**more)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: a saved folder names the loader, and no copy of this file goes with it."""


class ArchzooCache(Cache):
    """The decode state of a batch: None before its first token."""

    def __init__(self, state: DecodeState | None = None) -> None:
        super().__init__(layers=[])
        self.state, self.columns, self.tokens = state, 0, None

    is_compileable = is_croppable = False
    is_linear = (False,)
    """That a prompt goes on after these columns: where all layers say linear, `generate` reads it from its start."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the batch that were read, padding included."""
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these sequences, in this order; one may be there several times."""
        self.state = select_sequences(self.state, beam_idx)
        self.tokens = self.tokens[beam_idx]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have every sequence so many times."""
        self.reorder_cache(torch.arange(len(self.tokens)).repeat_interleave(repeats).to(self.tokens.device))

    def crop(self, max_length: int) -> None:
        """Raise ValueError: a state that was read into cannot be taken back."""
        raise ValueError("a decode state cannot be shortened; read the prompt again")

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self.columns, self.tokens = None, 0, None


class ArchzooForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel` behind the interface of transformers."""

    config_class = ArchzooConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _no_split_modules = ("Layer",)

    def __init__(self, config: ArchzooConfig) -> None:
        super().__init__(config)
        self.model = build(config.archzoo)
        self._keep_in_fp32_modules_strict = set(map(re.escape, in_fp32(self)))
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """As of PreTrainedModel; then everything that is not saved is computed again (zoo.interfaces.restore)."""
        found = super().from_pretrained(*args, **options)
        model = found[0] if isinstance(found, tuple) else found
        # Tensors in a mapped file begin at any address, where products on a CPU add up in another order.
        for x in (*model.parameters(), *model.buffers()):
            x.data = x.data.clone()
        restore(model)
        return found

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: a saved folder names the loader, and no copy of this file goes with it."""

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:
        """As of PreTrainedModel, with the loader beside the weights."""
        super().save_pretrained(save_directory, **options)
        (Path(save_directory) / LOADER).write_text(LOADER_TEXT, encoding="utf-8")

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: a LanguageModel draws its own weights."""

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module | None:
        """The LM head, None where it is the embedding."""
        return self.model.head

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Module:
        """Raise ValueError: a vocabulary is part of the model's description."""
        raise ValueError(
            "the vocabulary of an archzoo model cannot be resized; train a model with the vocabulary that you need"
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        cache: Cache | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **more: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """input_ids int64 [B, T] -> logits [B, T, V], of the last `logits_to_keep` tokens where that is not 0.

        attention_mask: 1 for tokens, 0 for padding, [B, T] or with the columns read before; labels: int64 [B, T], −100
        for none: loss is the mean cross-entropy of each token's successor, with the auxiliary losses.
        num_items_in_batch: answers of all micro-batches of a step, as transformers' Trainer counts them; the loss is
        then this micro-batch's part of the step's. cache, past_key_values: the decode state, by either name.
        Raises ValueError for what would be computed wrongly, and for outputs that there are not.
        """
        asked = [name for name in OUTPUTS if more.get(name)]
        if asked:
            raise ValueError(
                f"an archzoo model has no {asked[0]}; leave it out, or probe the run with job=probe"
            )
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("an archzoo model reads input_ids, not inputs_embeds")
        cache = past_key_values if cache is None else cache
        if cache is not None and not isinstance(cache, ArchzooCache):
            raise ValueError(
                f"past_key_values of type {type(cache).__name__} holds no decode state; leave it out, or "
                "give zoo.hf.ArchzooCache()"
            )
        if cache is not None and self.training:
            raise ValueError("decoding has no gradient; call eval() first, or give no cache")
        cached = cache is not None or (use_cache is True and not self.training)
        real = _own_tokens(input_ids, attention_mask, 0 if cache is None else cache.columns)
        _check_positions(position_ids, real, None if cache is None else cache.tokens)
        aux: dict[str, Tensor] = {}
        if cached:
            cache = ArchzooCache() if cache is None else cache
            logits = self._extend(input_ids, real, cache)
        elif _padded_left(real):
            logits = self._rows_alone(input_ids, real)
        else:  # padding behind tokens is of no account to them
            logits, aux = self.model(input_ids)
        loss = None
        if labels is not None:
            next_ones = labels[:, 1:].flatten()
            answers = (next_ones != -100).sum()
            items = answers if num_items_in_batch is None else num_items_in_batch
            total = F.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), next_ones, ignore_index=-100, reduction="sum"
            )
            loss = (total + answers * self.model.aux_loss(aux)) / items
        if isinstance(logits_to_keep, Tensor):
            logits = logits[:, logits_to_keep]
        elif logits_to_keep:
            logits = logits[:, -logits_to_keep:]
        out = CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache if cached else None})
        return out.to_tuple() if return_dict is False else out

    def _extend(self, tokens: Tensor, real: Tensor, cache: ArchzooCache) -> Tensor:
        """Logits [B, T, V] of the next tokens, zeros where there is padding; rows with as many are read together."""
        batch, width = tokens.shape
        cache.columns += width
        counts = real.sum(1)
        if cache.state is None:
            cache.state = self.model.init_state(batch, capacity=width)
            cache.tokens = torch.zeros_like(counts)
        if bool(((counts < width) & ((cache.tokens > 0) | real[:, 0])).any()):
            raise ValueError("padding must stand before a sequence's first token only; pad on the left")
        cache.tokens = cache.tokens + counts
        if bool((counts == width).all()):
            logits, cache.state = self.model.extend(tokens, cache.state, every=True)
            return logits
        parts, states, order = [], [], []
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero().flatten()
            state = select_sequences(cache.state, rows)
            logits = None
            if count:
                logits, state = self.model.extend(tokens[rows, width - count :], state, every=True)
            parts.append((rows, logits))
            states.append(state)
            order.append(rows)
        index = torch.cat(order).argsort()
        cache.state = select_sequences(join_states(states), index)
        return _scattered(parts, batch, width, self.model)

    def _rows_alone(self, tokens: Tensor, real: Tensor) -> Tensor:
        """Logits [B, T, V] of whole sequences that padding stands before."""
        batch, width = tokens.shape
        counts = real.sum(1)
        parts = []
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero().flatten()
            parts.append((rows, self.model(tokens[rows, width - count :])[0] if count else None))
        return _scattered(parts, batch, width, self.model)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any, **__: Any
    ) -> None:
        """Put an empty decode state where `generate` would put a cache of keys and values."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation} is for keys and values, and an archzoo "
                "model decodes with its own state; leave it out"
            )
        if model_kwargs.get(CACHE) is None and generation_config.use_cache is not False:
            model_kwargs[CACHE] = ArchzooCache()


def in_fp32(model: nn.Module) -> list[str]:
    """Names of parameters and buffers that stay in fp32 where a model is loaded in half precision.

    Norms, decays, routing biases, coefficients of streams: all but the matrices that tokens are multiplied with, which
    are those under weight decay and of convolutions. Of a residual scheme these are computed with in fp32, too.
    """
    names = []
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding | ShortConvolution):
            continue
        halved = () if isinstance(part, Residual) else getattr(part, "decays", ())
        tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        names += [f"{name}.{leaf}" for leaf, x in tensors if x.is_floating_point() and leaf not in halved]
    return names


def _own_tokens(tokens: Tensor, mask: Tensor | None, before: int) -> Tensor:
    """Whether each of the tokens is one and no padding, bool [B, T]. Raises ValueError for a mask of another shape."""
    batch, width = tokens.shape
    if mask is None:
        return torch.ones(batch, width, dtype=torch.bool, device=tokens.device)
    if mask.dim() != 2 or mask.shape[1] not in (width, before + width):
        raise ValueError(
            f"attention_mask must be [B, T] for the {width} tokens given, or for all {before + width} so "
            f"far, not {list(mask.shape)}"
        )
    return mask[:, -width:].bool()


def _check_positions(given: Tensor | None, real: Tensor, before: Tensor | None) -> None:
    """Raise ValueError for positions that are not those of the tokens, counted from their sequence's first."""
    if given is None:
        return
    counted = real.long().cumsum(1) - 1 + (0 if before is None else before[:, None])
    if given.dim() != 2 or bool((given.expand_as(counted) != counted)[real].any()):
        raise ValueError(
            "position_ids must count from the first token of each row; leave position_ids out, and give each sequence "
            "a row of its own, padded on the left"
        )


def _padded_left(real: Tensor) -> bool:
    """Whether padding stands before tokens. Raises ValueError where it stands before some and behind others."""
    rises, falls = real[:, 1:] & ~real[:, :-1], real[:, :-1] & ~real[:, 1:]
    if bool(falls.any()) and bool(rises.any()):
        raise ValueError("attention_mask has padding between tokens, or on both sides; pad on the left")
    return bool(rises.any())


def _scattered(
    parts: list[tuple[Tensor, Tensor | None]], batch: int, width: int, model: LanguageModel
) -> Tensor:
    """Logits [B, T, V] of rows that were computed apart, at their last tokens; zeros where there is padding."""
    like = next((logits for _, logits in parts if logits is not None), model.embedding.weight)
    out = like.new_zeros(batch, width, model.vocab_size)
    for rows, logits in parts:
        if logits is not None:
            out[rows, width - logits.shape[1] :] = logits
    return out


AutoConfig.register("archzoo", ArchzooConfig, exist_ok=True)
AutoModelForCausalLM.register(ArchzooConfig, ArchzooForCausalLM, exist_ok=True)

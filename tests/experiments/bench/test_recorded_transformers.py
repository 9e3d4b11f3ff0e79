"""What a model's equal in transformers is configured with, and which of our weights go where, without that package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from support.recorded import check
from support.steady import changed, refusal, set_by_formula, tiny_config

from experiments.bench import hugging_face
from zoo import LanguageModel

RECORDED = Path(__file__).parent / "recorded"


def _model(**keys) -> LanguageModel:
    config = changed(tiny_config().model, **keys)
    return set_by_formula(LanguageModel(config, vocab_size=20, seq_len=16), 0.3)


MODELS = {
    "Llama": {"mixers__attention__n_kv_heads": 1},
    "Lfm2": {"pattern": "CF", "mixers__attention__qk_norm": True, "mixers__gated_conv__kernel_size": 5},
    "DeepseekV3": {"pattern": "L", "tie_embeddings": False},
}


def test_configurations_and_weights(monkeypatch):
    copied: list[tuple] = []

    class Theirs:
        def __init__(self, config) -> None:
            self.config = config

        def eval(self):
            return self

    names = [f"{family}{kind}" for family in MODELS for kind in ("Config", "ForCausalLM")]
    made = {name: Theirs if name.endswith("LM") else dict for name in names}
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**made))
    monkeypatch.setattr(hugging_face, "copy_weights", lambda *given: copied.append(given))

    def lines() -> Iterator[str]:
        for family, keys in MODELS.items():
            model = _model(**keys)
            yield f"{family}: {hugging_face.family_of(model)}"
            theirs = hugging_face.MAKE[family](model)
            yield from (f"  {key}: {value}" for key, value in theirs.config.items())
            _, _, layer_weights, norm = copied[-1]
            yield f"  norm {norm}"
            for number, layer in enumerate(model.layers):
                for name, weight in layer_weights(layer):
                    places = torch.tensor([part * (weight.numel() - 1) // 4 for part in range(5)])
                    shown = [round(x, 5) for x in weight.detach().flatten()[places].tolist()]
                    yield f"  {number}.{name} {tuple(weight.shape)} {shown}"
        plain = hugging_face.make_deepseek(model, interleaved=False).config
        yield f"halves: {plain['rope_interleave']}"
        yield f"{hugging_face.half_split(torch.arange(8.0), 4).tolist()}"
        yield f"{hugging_face._by_head(2, torch.arange(4.0), 10 + torch.arange(2.0)).tolist()}"

    check(RECORDED / "transformers.txt", lines(), relative=1e-4, absolute=2e-5)


def test_weights_that_are_left_out(monkeypatch):
    model = _model()
    kept: dict[str, tuple] = {}

    class Theirs(torch.nn.Module):
        def __init__(self, numbers: int) -> None:
            super().__init__()
            self.own = torch.nn.Parameter(torch.zeros(numbers))

        def load_state_dict(self, state, strict):
            kept.update({name: tuple(x.shape) for name, x in state.items()} | {"strict": strict})

    own = sum(p.numel() for p in model.parameters())

    def lines() -> Iterator[str]:
        for numbers in (own, own - 1):
            yield refusal(
                hugging_face.copy_weights, model, Theirs(numbers), hugging_face.llama_layer, "last.norm"
            )
        yield from (f"{name}: {shape}" for name, shape in kept.items())
        for error, precision in ((0.0, torch.float32), (2e-3, torch.float32), (2e-3, torch.bfloat16)):
            monkeypatch.setattr(hugging_face, "prefill", lambda model, tokens, room: (torch.ones(2, 4), None))
            ours = SimpleNamespace(
                embedding=model.embedding, vocab_size=20, step=lambda tokens, state: (torch.ones(2, 4), None)
            )
            theirs = SimpleNamespace(
                family="Llama",
                prefill=lambda tokens: (torch.ones(2, 4), None),
                step=lambda tokens, cache, error=error: torch.ones(2, 4) * (1 + error),
            )
            yield f"{error} {precision}: {refusal(hugging_face._check_logits, ours, theirs, precision)}"
        yield refusal(hugging_face.Peer, _model(pattern="K"), torch.float32)
        longer = hugging_face._lengthen(torch.ones(1, 2, 3, 4), 5)
        yield f"{tuple(longer.shape)} {longer.sum(dim=(0, 1, 3)).tolist()}"
        cached = SimpleNamespace(
            cache_after=lambda tokens, batch: SimpleNamespace(layers=[torch.zeros(tokens + 3)])
        )
        yield f"{hugging_face.Peer.state_bytes(cached, 100, 2)}"

    check(RECORDED / "transformers_weights.txt", lines())


def test_a_head_of_its_own_is_copied_as_such():
    """One that shares the embedding's weights is given those."""

    class Theirs(torch.nn.Module):
        def __init__(self, model: LanguageModel) -> None:
            super().__init__()
            self.given, self.model = {}, model

        def load_state_dict(self, given: dict, strict: bool) -> None:
            assert strict
            self.given = given

    for tied in (True, False):
        model = _model(pattern="F", tie_embeddings=tied)
        theirs = Theirs(model)
        hugging_face.copy_weights(model, theirs, hugging_face.llama_layer, "model.norm.weight")
        own = model.embedding if tied else model.head
        assert theirs.given["lm_head.weight"] is own.weight
        assert theirs.given["model.embed_tokens.weight"] is model.embedding.weight


def test_latent_attention_that_rotates_halves_has_the_rows_of_its_pairs_moved_and_no_others():
    """Of four channels (0, 1, 2, 3) the pairs (0, 1) and (2, 3) become (0, 2) and (1, 3)."""
    layer = _model(**MODELS["DeepseekV3"]).layers[0]
    m = layer.mixer
    pairs, halves = (dict(hugging_face.deepseek_layer(layer, interleaved=x)) for x in (True, False))
    moved = {name for name, x in pairs.items() if not torch.equal(x, halves[name])}
    assert moved == {"self_attn.q_b_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"}
    latent = len(m.kv_down.weight)
    own, theirs = (x["self_attn.kv_a_proj_with_mqa.weight"] for x in (pairs, halves))
    assert torch.equal(own, torch.cat([m.kv_down.weight, m.k_rope.weight]))
    assert torch.equal(theirs[:latent], own[:latent])
    order = [*range(0, m.rope_dim, 2), *range(1, m.rope_dim, 2)]
    assert torch.equal(theirs[latent:], own[latent:][order])
    assert hugging_face.half_split(torch.arange(8.0)[:, None], 4).flatten().tolist() == [
        0,
        2,
        1,
        3,
        4,
        6,
        5,
        7,
    ]

"""Folders in Hugging Face's layout: what transformers loads from them computes what the model here computes."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.contract_cases import VOCAB, tokens

import zoo
from experiments.configuration.compose import architectures
from zoo import LanguageModel, ModelConfig, UserError, registry
from zoo.config import from_dict
from zoo.interfaces import set_step
from zoo.pretrained.writing import LOADER, write_folder
from zoo.tokenization import SEPARATOR, ByteTokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

import zoo.hf  # noqa: E402  it needs transformers

LENGTH, LATER, GREEDY = 24, 19, 64
PRESETS = [
    name
    for name in architectures(ModelConfig())
    if name not in ("kda_pure", "conv_pure", "lfm2_gqa", "kda_moe", "swa")  # swa_sinks holds what it has
]
SCHEMES, CHANNELS = list(registry.blocks("residual")), list(registry.blocks("channel"))


def moved(config: ModelConfig, *, vocab: int = VOCAB, step: int | None = None) -> LanguageModel:
    """A small model whose weights are far enough from their start that every term counts."""
    model = LanguageModel(config, vocab_size=vocab, seq_len=LENGTH, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    if step is not None:
        set_step(model, step, 1000)
    return model


def greedy(model: LanguageModel, prompts: Any, number: int) -> torch.Tensor:
    return torch.stack(list(zoo.generate(model, prompts, number, temperature=0)), 1)


def native(pattern: str, **options: Any) -> LanguageModel:
    values = {"pattern": pattern, "depth": len(pattern), "d_model": 32, "n_heads": 4, **options}
    return moved(from_dict(ModelConfig, values))


def small(preset: str, scheme: str = "add", channel: str = "swiglu") -> ModelConfig:
    config = dataclasses.replace(architectures(ModelConfig())[preset], d_model=16, n_heads=2, depth=2)
    config.residual.name, config.channel.name = scheme, channel
    return config


# Families of transformers itself.


def attention(**options: Any) -> dict[str, Any]:
    return {"mixers": {"attention": options}}


def mla(**options: Any) -> dict[str, Any]:
    return {"mixers": {"mla": options}}


def experts(name: str, **options: Any) -> dict[str, Any]:
    return {"channel": {"name": name, "moe": options}}


YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_length": 16}
KIMI = {"kda": {"gate_bias": False}, "mla": {"positions": "none", "q_rank": 0}}
NATIVE = [
    ("llama", "FF", {}),
    ("llama", "FF", {"tie_embeddings": False, "norm_eps": 1e-5, **attention(n_kv_heads=2)}),
    ("llama", "FF", attention(head_width=12, rope_base=500.0)),
    ("llama", "FF", attention(rope_scaling="linear", rope_factor=4.0)),
    ("llama", "FF", attention(rope_scaling="llama3", rope_factor=8.0, rope_length=16)),
    ("llama", "FF", attention(**YARN)),
    ("llama", "FF", attention(**YARN, rope_mscale=0.3)),
    ("mistral", "FF", attention(window=5)),
    ("qwen2", "FF", attention(qkv_bias=True, n_kv_heads=1)),
    ("qwen3", "FF", attention(qk_norm=True)),
    ("qwen3", "FF", attention(qk_norm=True, window=5, head_width=16)),
    ("lfm2", "CFC", attention(qk_norm=True, rope_base=1e6)),
    ("deepseek_v2", "LL", {}),
    ("deepseek_v2", "LL", mla(q_rank=0, value_width=12)),
    ("deepseek_v3", "LL", experts("moe")),
    ("deepseek_v3", "LLL", experts("swiglu+moe", groups=4, top_groups=2)),
    (
        "deepseek_v2",
        "LLL",
        experts("swiglu*2+moe", scores="softmax", renormalise=False, groups=4, top_groups=2),
    ),
    ("kimi_linear", "KLK", {"tie_embeddings": False, **experts("swiglu+moe"), "mixers": KIMI}),
    ("deepseek_v2", "LL", mla(**YARN, rope_mscale_all=0.9)),
]


@pytest.mark.parametrize(("family", "pattern", "options"), NATIVE)
def test_a_model_that_a_published_family_computes_is_written_as_one(
    family, pattern, options, tmp_path, plain_kimi
):
    """Back here it is bit for bit the model that it was."""
    model = native(pattern, **options)
    assert write_folder(model, tmp_path / "out") == (family, "")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__module__.startswith("transformers.")
    batch = tokens(2, LATER)
    with torch.no_grad():
        wanted = model(batch)[0]
        assert (theirs(batch).logits - wanted).norm() < 1e-5 * wanted.norm()
        assert torch.equal(zoo.from_pretrained(tmp_path / "out")(batch)[0], wanted)


@pytest.mark.parametrize(
    ("family", "pattern", "options", "said"),
    [
        ("llama", "FF", attention(output_gate=True), "output_gate"),
        ("llama", "FF", attention(window=5), "window is 5 and would be None"),
        ("llama", "FF", attention(sinks="learned"), "sinks"),
        ("llama", "WF", {"variants": {"W": {"mixer": "attention"}}}, "no family has layers WF"),
        ("qwen3", "FF", {}, "q_norm"),
        ("llama", "SF", {}, "no family has layers SF"),
        ("llama", "FF", {"residual": {"name": "ohc"}}, "mixer_residual"),
        ("llama", "FF", {"channel": {"name": "mlp"}}, "gate"),
        ("lfm2", "CC", {}, "no layer has attention"),
    ],
)
def test_a_family_that_cannot_hold_a_model_is_refused_by_what_it_lacks(
    family, pattern, options, said, tmp_path
):
    with pytest.raises(UserError) as caught:
        write_folder(native(pattern, **options), tmp_path / "out", family=family)
    assert said in str(caught.value)
    assert "to write model_type=archzoo" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stays_and_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    model = native("FF")
    write_folder(model, tmp_path / "out")
    before = (tmp_path / "out" / "config.json").read_bytes()
    with pytest.raises(UserError, match="already exists"):
        write_folder(model, tmp_path / "out", family="archzoo")
    assert (tmp_path / "out" / "config.json").read_bytes() == before

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(zoo.pretrained.writing, "write_weights", full)
    with pytest.raises(OSError, match="no space"):
        write_folder(model, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("family", [None, "archzoo"])
def test_weights_are_written_in_files_of_a_size(family, tmp_path):
    model = native("FF", tie_embeddings=False)
    write_folder(model, tmp_path / "out", family=family, largest=20_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert max(path.stat().st_size for path in files) < 25_000
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens(2, 9)).logits, model(tokens(2, 9))[0])


# model_type="archzoo".

_CHILD = """
import json, sys
import safetensors.torch, torch
from transformers import AutoModelForCausalLM
assert "zoo" not in sys.modules
remote = json.loads(sys.argv[2])
if not remote:
    import zoo.hf
for folder in sys.argv[3:]:
    wanted = safetensors.torch.load_file(f"{folder}/../wanted-{folder.rsplit('/', 1)[1]}.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=remote).eval()
    for again in (False, True):
        with torch.no_grad():
            same = torch.equal(model(wanted["batch"]).logits, wanted["logits"])
        made = model.generate(wanted["batch"], max_new_tokens=wanted["greedy"].shape[1], do_sample=False)
        same &= torch.equal(made[:, wanted["batch"].shape[1]:], wanted["greedy"])
        print(folder.rsplit("/", 1)[1], "same" if same else "differs")
        model.save_pretrained(f"{sys.argv[1]}/again")
        model = AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/again", trust_remote_code=remote).eval()
"""


def in_a_process_of_its_own(
    place: Path, models: dict[str, LanguageModel], *, remote: bool = False
) -> list[str]:
    """What a new process says of these models, written and loaded, saved there and loaded again; two lines each."""
    batch = tokens(2, LATER)
    for name, model in models.items():
        write_folder(model, place / name, family="archzoo")
        with torch.no_grad():
            made = greedy(model, batch, GREEDY)
            found = {"batch": batch, "logits": model(batch)[0].clone(), "greedy": made}
        safetensors.torch.save_file(found, place / f"wanted-{name}.safetensors")
    folders = [str(place / name) for name in models]
    root = Path(zoo.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "HF_HOME": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD, str(place), json.dumps(remote), *folders],
        capture_output=True, text=True, env=environment, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def each_block() -> dict[str, ModelConfig]:
    """Every preset, scheme and channel mixer at least once."""
    found = {}
    for i, preset in enumerate(PRESETS):
        scheme, channel = SCHEMES[i % len(SCHEMES)], CHANNELS[i % len(CHANNELS)]
        found[f"{preset}-{scheme}-{channel}"] = small(preset, scheme, channel)
    return found


def test_every_block_loads_bit_for_bit_in_another_process(tmp_path):
    """During warm-up and after it: logits, 64 greedy tokens, and both again after saving there."""
    models = {
        name: moved(config, step=50 + 900 * (i % 2)) for i, (name, config) in enumerate(each_block().items())
    }
    assert in_a_process_of_its_own(tmp_path, models) == [f"{name} same" for name in models for _ in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("preset", PRESETS)
def test_all_combinations_load_bit_for_bit_in_another_process(preset, tmp_path):
    models = {
        f"{scheme}-{channel}-{step}": moved(small(preset, scheme, channel), step=step)
        for scheme in SCHEMES
        for channel in CHANNELS
        for step in (50, 950)
    }
    assert in_a_process_of_its_own(tmp_path, models) == [f"{name} same" for name in models for _ in range(2)]


def test_the_folders_loader_serves_a_process_that_never_imported_this_project(tmp_path):
    models = {"one": moved(small("orthgsa", "shc", "moe"), step=50)}
    assert in_a_process_of_its_own(tmp_path, models, remote=True) == ["one same", "one same"]
    assert len((tmp_path / "one" / LOADER).read_text().splitlines()) <= 10


def test_without_transformers_the_classes_say_what_to_install():
    script = "import sys; sys.modules['transformers'] = None\ntry:\n import zoo.hf\nexcept ValueError as e: print(e)"
    root = Path(zoo.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True
    )
    assert "pip install -e '.[hf]'" in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.fixture
def pair(request, tmp_path):
    """A model and its class of transformers; the parameter: a preset, a scheme and a channel mixer."""
    model = moved(small(*request.param), step=950)
    write_folder(model, tmp_path / "out", family="archzoo")
    return model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()


every_state = pytest.mark.parametrize(
    "pair",
    [
        (preset,) if preset in ("transformer", "kda") else pytest.param((preset,), marks=pytest.mark.long)
        for preset in PRESETS
    ],
    indirect=True,
)


@every_state
def test_rows_padded_on_the_left_are_decoded_as_they_alone_would_be(pair):
    model, theirs = pair
    batch, starts = tokens(3, LATER), (0, 7, 1)
    mask = torch.ones_like(batch)
    for row, start in enumerate(starts):
        mask[row, :start] = 0
    alone = [batch[row, start:] for row, start in enumerate(starts)]
    wanted = greedy(model, alone, 12)
    for options in ({}, {"prefill_chunk_size": 5}):
        made = theirs.generate(batch, attention_mask=mask, max_new_tokens=12, do_sample=False, **options)
        assert torch.equal(made[:, LATER:], wanted)
    with torch.no_grad():
        for found in (theirs(batch, attention_mask=mask), theirs(batch, attention_mask=mask, use_cache=True)):
            for row, start in enumerate(starts):
                one = model(batch[row : row + 1, start:])[0][0]
                torch.testing.assert_close(found.logits[row, start:], one, rtol=1e-4, atol=1e-5)


@every_state
def test_beams_are_those_of_whole_passes(pair):
    """Beam search with the decode state against beam search that reads every sequence anew."""
    _, theirs = pair
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    batch = tokens(2, 9)
    assert torch.equal(
        theirs.generate(batch, use_cache=True, **options), theirs.generate(batch, use_cache=False, **options)
    )


@every_state
def test_a_state_is_carried_on_from_one_call_to_the_next(pair):
    model, theirs = pair
    batch = tokens(2, LATER)
    cache = zoo.hf.ArchzooCache()
    with torch.no_grad():
        theirs(batch[:, :11], use_cache=True, **{zoo.hf.CACHE: cache})
    made = theirs.generate(batch, max_new_tokens=8, do_sample=False, **{zoo.hf.CACHE: cache})
    assert torch.equal(made[:, LATER:], greedy(model, batch, 8))


@pytest.mark.parametrize("pair", [("kda",)], indirect=True)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"past_key_values": transformers.DynamicCache()}, "holds no decode state"),
        ({"position_ids": torch.arange(LATER)[None] + 3}, "position_ids must count from the first token"),
        ({"position_ids": torch.arange(LATER)[None] % 7}, "position_ids must count from the first token"),
        ({"attention_mask": torch.ones(2, 1, LATER, LATER)}, "attention_mask must be"),
        ({"attention_mask": torch.tensor([1] * 9 + [0] + [1] * 9).expand(2, -1)}, "pad on the left"),
        ({"attention_mask": torch.tensor([[1] * 9 + [0] * 10] * 2), "use_cache": True}, "pad on the left"),
        ({"inputs_embeds": torch.zeros(2, LATER, 16)}, "not inputs_embeds"),
        ({"output_hidden_states": True}, "no output_hidden_states"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(pair, how, said):
    with pytest.raises(ValueError, match=said):
        pair[1](tokens(2, LATER), **how)


@pytest.mark.parametrize("pair", [("transformer",)], indirect=True)
def test_what_a_decode_state_cannot_do_is_refused(pair):
    batch = tokens(1, 9)
    for options, said in (
        ({"cache_implementation": "static"}, "decodes with its own state"),
        ({"assistant_model": pair[1]}, "assisted generation"),
    ):
        with pytest.raises(ValueError, match=said):
            pair[1].generate(batch, max_new_tokens=4, do_sample=False, **options)


@pytest.mark.parametrize("pair", [("kda", "shc", "moe")], indirect=True)
def test_the_loss_is_that_of_training_and_padding_behind_tokens_changes_nothing(pair):
    model, theirs = pair
    batch = tokens(2, LATER)
    labels = batch.clone()
    labels[1, 12:] = -100
    theirs.train()
    found = theirs(batch, attention_mask=(labels != -100).long(), labels=labels)
    found.loss.backward()
    assert all(p.grad is not None for p in theirs.get_input_embeddings().parameters())
    logits, aux = model.train()(batch)
    wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(found.loss, wanted + model.aux_loss(aux))


@pytest.mark.parametrize("pair", [("transformer",)], indirect=True)
def test_micro_batches_of_transformers_trainer_add_up_to_a_step(pair):
    """The Trainer does not divide by its micro-batches where a forward takes num_items_in_batch."""
    batch = tokens(4, LATER)
    labels = batch.clone()
    labels[1, 5:] = -100
    labels[3] = -100
    items = (labels[:, 1:] != -100).sum()
    rows = [
        pair[1](batch[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=items).loss for i in range(4)
    ]
    torch.testing.assert_close(sum(rows), pair[1](batch, labels=labels).loss)


@pytest.mark.parametrize("preset", PRESETS)
def test_in_half_precision_norms_decays_and_coefficients_stay_in_fp32(preset, tmp_path):
    model = moved(small(preset, "shc", "moe"), step=950)
    write_folder(model, tmp_path / "out", family="archzoo")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16).eval()
    kept = {name for name, x in theirs.state_dict().items() if x.dtype == torch.float32}
    for name, x in theirs.state_dict().items():
        last = name.rsplit(".", 1)[-1]
        single = ("A_log", "dt_bias", "alpha", "phi_pre", "turns")
        if "norm" in name or last in single or "balance.bias" in name:
            assert name in kept, name
            assert torch.equal(x, model.state_dict()[name.removeprefix("model.")])
        if last == "weight" and x.dim() == 2:
            assert x.dtype == torch.bfloat16
    batch = tokens(2, LATER)
    with torch.no_grad():
        wanted = model(batch)[0]
        assert (theirs(batch).logits.float() - wanted).norm() < 0.2 * wanted.norm()


# Tokenizers.


def test_a_separator_that_a_text_spells_out_stays_text(tmp_path):
    ours, model = ByteTokenizer(), moved(small("transformer"), vocab=257)
    write_folder(model, tmp_path / "out", tokenizer=ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("", "the cat", f"a {SEPARATOR} b", "e\u0301 \u4f60\n\n  x"):
        assert theirs(text).input_ids == [ours.bos_id, *ours.encode(text)]
        assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    padded = theirs(["a", "abc"], padding=True)
    assert [sum(row) for row in padded["attention_mask"]] == [2, 4]
    assert padded["attention_mask"][0][0] == 0

"""zoo.from_pretrained: published models, made small and at random by transformers, compute the same numbers here."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.peak_memory import printed_by
from support.published import SIZES, TIME, VOCAB, saved, with_tokenizer

import zoo
from zoo import UserError
from zoo.pretrained import read_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

CLOSE = 1e-5
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS = (
    {"rope_type": "linear", "factor": 4.0},
    YARN | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    YARN,
    YARN | {"attention_factor": 1.1, "beta_fast": 8.0},
    YARN | {"mscale": 0.7},
)
CASES = [
    *((family, {"tie_word_embeddings": False}, "1GB") for family in SIZES),
    # Kimi Linear of transformers has no tied head.
    *((family, {"tie_word_embeddings": True}, "1GB") for family in SIZES if family != "KimiLinear"),
    *((family, {}, "10KB") for family in ("Qwen3", "DeepseekV3", "KimiLinear")),
    *(("Llama", {"rope_parameters": {"rope_theta": 500.0, **scaling}}, "1GB") for scaling in SCALINGS),
    ("DeepseekV2", {"topk_method": "greedy", "q_lora_rank": 20, "num_experts_per_tok": 1}, "1GB"),
    ("DeepseekV3", {"q_lora_rank": None, "n_group": 1, "topk_group": 1}, "1GB"),
    ("DeepseekV3", {"norm_topk_prob": False}, "1GB"),
    ("DeepseekV3", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}}, "1GB"),
    ("Mistral", {"sliding_window": None, "head_dim": 16}, "1GB"),
    ("Qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}, "1GB"),
    ("Lfm2", {"block_auto_adjust_ff_dim": False}, "1GB"),
    ("DeepseekV3", {"first_k_dense_replace": 3}, "1GB"),
]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("family", "options", "shard"), CASES)
def test_a_published_model_computes_the_same_here(family, options, shard, tmp_path, plain_kimi):
    """Whole sequences, and token by token."""
    folder, theirs = saved(tmp_path, family, shard, **options)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard == "10KB")
    ours = zoo.from_pretrained(folder)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    batch = torch.randint(VOCAB, (2, TIME), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = theirs(batch, use_cache=False).logits
        assert relative(ours(batch)[0], wanted) < CLOSE
        state = ours.init_state(2)
        for t in range(TIME):
            logits, state = ours.step(batch[:, t], state)
            assert relative(logits, wanted[:, t]) < CLOSE


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_in_double_precision_both_agree_to_the_last_digits(family, tmp_path):
    """With what transformers computes in fp32 whatever the dtype, norms and angles, lifted to fp64."""
    folder, theirs = saved(tmp_path, family)
    theirs = theirs.double()
    rotary = theirs.model.rotary_emb
    for module in theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(torch.nn.functional.rms_norm, normalized_shape=module.weight.shape,
                                     weight=module.weight, eps=module.variance_epsilon)  # fmt: skip

    def angles(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width = 2 * len(rotary.inv_freq)
        turned = 1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = position_ids[..., None].double() * turned
        return tuple(f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))

    rotary.forward = angles
    batch = torch.randint(VOCAB, (2, TIME), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = theirs(batch, use_cache=False).logits
        assert relative(zoo.from_pretrained(folder).double()(batch)[0], wanted) < 1e-12


def test_half_precision_weights_are_read_as_they_are(tmp_path):
    folder, theirs = saved(tmp_path, "Qwen3")
    theirs.to(torch.bfloat16).save_pretrained(folder)
    assert torch.equal(
        zoo.from_pretrained(folder).embedding.weight, theirs.model.embed_tokens.weight.detach().float()
    )


def test_a_configuration_of_before_version_5_means_the_same(tmp_path):
    folder, _ = saved(tmp_path, "Qwen3")
    before = zoo.from_pretrained(folder)
    change(folder, lambda c: c.update(rope_theta=c.pop("rope_parameters")["rope_theta"], rope_scaling=None))
    assert zoo.from_pretrained(folder).config == before.config


def test_memory_never_holds_more_than_the_model_and_a_shard(tmp_path):
    sizes = {"vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12}
    folder, theirs = saved(tmp_path, "Llama", "20MB", **sizes)
    model = sum(4 * p.numel() for p in theirs.parameters())
    shard = max(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert model > 5 * shard
    script = "import zoo\nfrom support.peak_memory import peak\nbefore = peak()\n{}print(peak() - before)"
    load = f"model = zoo.from_pretrained({str(folder)!r})\n"
    grown = 1024 * printed_by(script.format(load))
    idle = 32 << 20  # late imports, and a tensor of 8 MB on its way; a second copy would take 124
    assert model * 0.9 < grown < model + shard + idle
    written = 1024 * printed_by(script.format(f"{load}zoo.export(model, {str(tmp_path / 'run')!r})\n"))
    assert written < grown + idle  # no second copy


# Bad input.

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None}


def change(folder: Path, how: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    how(values)
    write(folder, {"config.json": values})


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))


def weights(folder: Path, how: Any) -> None:
    found = safetensors.torch.load_file(folder / "model.safetensors")
    how(found)
    safetensors.torch.save_file(found, folder / "model.safetensors")


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        zoo.from_pretrained(folder)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("published")
    return {family: saved(place / family, family)[0] for family in SIZES}


@pytest.fixture
def qwen(folders, tmp_path):
    return shutil.copytree(folders["Qwen3"], tmp_path / "model")


@pytest.mark.parametrize(
    ("family", "how", "said"),
    [
        ("Qwen3", lambda c: c.update(model_type="gpt_neox"), "model_type=gpt_neox"),
        ("Qwen3", lambda c: c.pop("model_type"), "model_type=None"),
        ("Qwen3", lambda c: c.update(model_type=["qwen3"]), "model_type=['qwen3']"),
        ("Llama", lambda c: c.update(rope_parameters={"rope_type": "yarn"}), "rope_type=yarn without factor"),
        ("Qwen3", lambda c: c.pop("hidden_size"), "no hidden_size"),
        ("Qwen3", lambda c: c.update(hidden_size="wide"), "hidden_size='wide'"),
        ("Qwen3", lambda c: c.update(attention_bias=True), "attention_bias=True"),
        ("Qwen3", lambda c: c.update(hidden_act="gelu"), "hidden_act=gelu"),
        ("Qwen3", lambda c: c.update(rope_parameters={"rope_type": "longrope"}), "rope_type=longrope"),
        (
            "Llama",
            lambda c: c.update(rope_parameters={"rope_type": "llama3", "factor": 8.0}),
            "without low_freq_factor",
        ),
        ("Qwen3", lambda c: c.update(quantization_config={"bits": 4}), "quantization_config"),
        ("Qwen3", lambda c: c.update(WINDOWS), "full and sliding attention in turn"),
        ("Llama", lambda c: c.update(mlp_bias=True), "mlp_bias=True"),
        ("Lfm2", lambda c: c.update(conv_bias=True), "conv_bias=True"),
        ("Lfm2", lambda c: c.update(layer_types=["conv", "mamba", "conv"]), "layer_types=mamba"),
        ("DeepseekV3", lambda c: c.update(rope_interleave=False), "rope_interleave=False"),
    ],
)
def test_a_configuration_that_nothing_here_computes_is_refused(folders, family, how, said, tmp_path):
    folder = shutil.copytree(folders[family], tmp_path / "model")
    change(folder, how)
    assert said in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_configuration_that_is_none_is_refused(qwen, text):
    (qwen / "config.json").write_text(text)
    assert "config.json" in refused(qwen)


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert "it has no config.json" in refused(folder)


NAME, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda w: w.pop(NAME), f"missing: {NAME} [48, 32]"),
        (lambda w: w.update(extra=torch.zeros(2, 3)), "left over: extra [2, 3]"),
        (lambda w: w.update({NAME: torch.zeros(48, 31)}), f"{NAME} [48, 31] in place of [48, 32]"),
        (lambda w: w.update({BIAS: torch.zeros(64)}), f"left over: {BIAS} [64]"),
    ],
)
def test_weights_that_the_configuration_does_not_describe_are_refused(qwen, how, said):
    weights(qwen, how)
    assert said in refused(qwen)


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_a_truncated_file_is_refused(qwen, left):
    path = qwen / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    assert "model.safetensors" in refused(qwen)


def test_a_missing_shard_is_refused_and_an_index_that_names_more_than_there_is(tmp_path):
    folder, _ = saved(tmp_path, "Qwen3", "10KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["nothing"] = "model-00001-of-00009.safetensors"
    shards = sorted(folder.glob("*.safetensors"))
    index["weight_map"]["nothing"] = shards[0].name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "nothing" in refused(folder)
    shards[1].unlink()
    assert shards[1].name in refused(folder)


def test_pickled_weights_are_not_read(qwen):
    (qwen / "model.safetensors").rename(qwen / "pytorch_model.bin")
    assert "can run code" in refused(qwen)


def test_code_in_a_folder_is_never_run(qwen):
    (qwen / "modeling_own.py").write_text("raise SystemExit('run')")
    change(qwen, lambda c: c.update(auto_map={"AutoModelForCausalLM": "modeling_own.Own"}))
    assert zoo.from_pretrained(qwen).letters == "FF"


def test_layers_that_predict_later_tokens_and_saved_angles_are_left_out(folders, tmp_path):
    folder = shutil.copytree(folders["DeepseekV3"], tmp_path / "model")
    before = zoo.from_pretrained(folder).state_dict()
    more = {
        "model.layers.3.eh_proj.weight": torch.ones(2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    weights(folder, lambda w: w.update(more))
    after = zoo.from_pretrained(folder).state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    weights(folder, lambda w: w.update({"model.layers.2.eh_proj.weight": torch.ones(2)}))
    assert "left over: model.layers.2.eh_proj.weight [2]" in refused(folder)


# Tokenizers.

TEXTS = ["the cat", "", " hello  world\n", "e\u0301 <|separator|> \u4f60\u597d", "x" * 40]


def test_a_published_tokenizer_gives_the_same_ids(tmp_path):
    theirs = with_tokenizer(tmp_path)
    theirs.no_truncation()
    theirs.no_padding()
    theirs.encode_special_tokens = True
    write(tmp_path, {"tokenizer_config.json": {"bos_token": None, "eos_token": "<|separator|>"}})
    ours = read_tokenizer(tmp_path)
    assert ours.bos_id == 1
    assert ours.decode([1]) == "<|separator|>"
    again = zoo.tokenization.from_json(ours.to_json())
    for text in TEXTS:
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == wanted
        assert again.encode(text) == wanted
        assert ours.bos_id not in wanted
    assert again.identity() == ours.identity()


@pytest.mark.parametrize(
    ("files", "bos"),
    [
        ({"config.json": {"bos_token_id": 2, "eos_token_id": [1, 0]}}, 2),
        ({"config.json": {"bos_token_id": None, "eos_token_id": [1, 0]}}, 1),
        (
            {
                "tokenizer_config.json": {"bos_token": {"content": "<|end|>"}},
                "config.json": {"bos_token_id": 0},
            },
            2,
        ),
    ],
)
def test_documents_are_separated_by_the_token_that_begins_a_text(files, bos, tmp_path):
    with_tokenizer(tmp_path)
    write(tmp_path, files)
    assert read_tokenizer(tmp_path).bos_id == bos


def test_a_tokenizer_without_a_separator_or_with_damage_is_refused(tmp_path):
    with_tokenizer(tmp_path)
    with pytest.raises(UserError, match="name a bos_token"):
        read_tokenizer(tmp_path)
    write(tmp_path, {"tokenizer_config.json": {"bos_token": "<|begin|>"}, "tokenizer.json": {}})
    with pytest.raises(UserError, match=r"tokenizer\.json: the tables .* are damaged: it has no model"):
        read_tokenizer(tmp_path)

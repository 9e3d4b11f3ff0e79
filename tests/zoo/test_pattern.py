"""The pattern language: letters, repetition, groups, layouts, depth; and messages that help."""

import pytest

from zoo import LanguageModel, ModelConfig, UserError
from zoo.channels.mlp import MLP
from zoo.channels.moe import MoE
from zoo.channels.swiglu import SwiGLU
from zoo.config import (
    LAYOUTS,
    MAX_LAYERS,
    architecture_of,
    check_names,
    from_dict,
    layout_name,
    mixers_of,
    read_channels,
    read_pattern,
    split,
    used,
)
from zoo.io import export, load
from zoo.matching import match
from zoo.model import on_meta

KNOWN = "CFKLS"


@pytest.mark.parametrize(
    ("pattern", "letters"),
    [
        ("SF", "SF"),
        ("F*14", "F" * 14),
        ("(KKKL)*4", "KKKL" * 4),
        ("CC(FC)*3", "CCFCFCFC"),
        ("(SF)", "SF"),
        ("S(F(KL)*2)*2C", "SFKLKLFKLKLC"),
        ("((SF)*2)*2", "SF" * 4),
        ("F*1S*2", "FSS"),
        (f"F*{MAX_LAYERS}", "F" * MAX_LAYERS),
    ],
)
def test_letters_repetition_and_groups(pattern, letters):
    assert read_pattern(pattern, None, KNOWN) == letters


@pytest.mark.parametrize(
    ("pattern", "depth", "letters"),
    [
        ("SF", 5, "SFSFS"),
        ("KKKL", 3, "KKK"),
        ("F", 4, "FFFF"),
        ("(SF)*4", 2, "SF"),
        ("interlaced_sf", 4, "SFSF"),
        ("late_full", 16, "SSSSSSSSFFFFFFSS"),
    ],
)
def test_depth_tiles_or_cuts(pattern, depth, letters):
    assert read_pattern(pattern, depth, KNOWN) == letters


@pytest.mark.parametrize(
    ("layout", "letters"),
    [
        ("baseline", "FFFFFFFFFFFFFF"),
        ("interlaced_fss", "FSSFSSFSSFSSFF"),
        ("interlaced_sf", "SFSFSFSFSFSFSS"),
        ("late_full", "SSSSSSSSFFFFFF"),
        ("reverse_bookend", "SSSFFFFFFSSSSS"),
        ("chunked_4s2f", "SSSSFFSSSSFFFF"),
        ("early_full", "FFFFFFSSSSSSSS"),
        ("chunked_2f4s", "FFSSSSFFSSSSFF"),
        ("bookend", "FFFSSSSSSSSFFF"),
    ],
)
def test_named_layouts(layout, letters):
    assert read_pattern(layout, None, KNOWN) == letters
    assert layout_name(layout) == layout
    if layout != "baseline":
        assert (letters.count("S"), letters.count("F")) == (8, 6)
        assert layout_name(letters) == layout


def test_every_layout_is_tested_above():
    assert len(LAYOUTS) == 9
    assert layout_name("SFSF") is None
    assert layout_name("F" * 14) is None


@pytest.mark.parametrize(
    ("pattern", "at", "what"),
    [
        ("SFX", 3, "'X'"),
        ("S F", 2, "' '"),
        ("*F", 1, "'*'"),
        ("F*", 2, "'*'"),
        ("F*0", 2, "'*'"),
        (f"F*{MAX_LAYERS + 1}", 2, "'*'"),
        ("F*" + "9" * 5000, 2, "'*'"),
        ("F*²", 2, "'*'"),
        ("SF)", 3, "')'"),
        ("F(SF", 2, "'('"),
        ("()F", 1, "'('"),
        ("S(X)", 3, "'X'"),
        ("3F", 1, "'3'"),
        ("F**2", 2, "'*'"),
    ],
)
def test_a_bad_pattern_is_explained(pattern, at, what):
    with pytest.raises(UserError) as caught:
        read_pattern(pattern, None, KNOWN)
    said = str(caught.value)
    assert f"{what} at position {at} " in said
    assert "Known letters: C, F, K, L, S" in said
    assert """'model.pattern="(SF)*4"'""" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("pattern", "depth", "said"),
    [
        ("", None, "empty"),
        ("  ", None, "empty"),
        (None, None, "empty"),
        ("interlaced_sff", None, "did you mean 'interlaced_sf'?"),
        ("bokend", None, "did you mean 'bookend'?"),
        ("dyadic", None, "Known: baseline, bookend, "),
        ("dyadic", None, "made of mixer letters: C, F, K, L, S (job=list names them)"),
        ("sf", None, "did you mean SF?"),
        ("(Sf)*2", None, "did you mean (SF)*2?"),
        ("F", 0, "model.depth"),
        ("F", 10**9, "model.depth"),
        ("(F*4096)*2", None, "more than 4096 layers"),
        ("(" * 3000 + "F" + ")" * 3000, None, "nested"),
    ],
)
def test_what_is_no_pattern_at_all(pattern, depth, said):
    with pytest.raises(UserError) as caught:
        read_pattern(pattern, depth, KNOWN)
    assert said in str(caught.value)


def test_a_model_has_the_layers_of_its_pattern():
    config = ModelConfig(pattern="(SF)*2", depth=3, d_model=16, n_heads=2)
    model = LanguageModel(config, vocab_size=11, seq_len=8)
    assert model.letters == "SFS"
    assert [type(layer.mixer).__name__ for layer in model.layers] == ["HyperGraph", "Attention", "HyperGraph"]


# Variants: a mixer with options of its own, under a name of its own.

WINDOW = {"mixer": "attention", "window": 5}


def with_variants(pattern: str, variants: dict, depth: int | None = None, **mixers: dict) -> ModelConfig:
    sizes = {"d_model": 16, "n_heads": 2, "depth": depth, "pattern": pattern}
    return from_dict(ModelConfig, {**sizes, "variants": variants, "mixers": mixers})


def model_of(config: ModelConfig, seq_len: int = 16) -> LanguageModel:
    return LanguageModel(config, vocab_size=11, seq_len=seq_len)


@pytest.mark.parametrize(
    ("pattern", "depth", "text"),
    [
        ("(WWWF)*2", None, "WWWFWWWF"),
        ("{near}*2F", 5, "{near}{near}F{near}{near}"),
        ("{attention}({W}{kda})*2", None, "FWKWK"),
        ("{near}", 2, "{near}{near}"),
    ],
)
def test_a_pattern_names_variants_and_mixers(pattern, depth, text):
    config = with_variants(pattern, {"W": WINDOW, "near": {"mixer": "attention", "window": 2}}, depth)
    assert architecture_of(config).letters == text
    names = {"W": "W", "{near}": "near", "F": "attention", "K": "kda"}
    assert [layer.mixer_name for layer in on_meta(config, vocab_size=11, seq_len=8).layers] == [
        names[word] for word in split(text)
    ]


def test_a_variant_has_its_mixers_options_and_its_own(tmp_path):
    config = with_variants("WF", {"W": WINDOW}, attention={"qk_norm": True, "n_kv_heads": 1})
    model = model_of(config)
    assert [(m.window, m.kv_heads, type(m.q_norm).__name__) for m in (x.mixer for x in model.layers)] == [
        (5, 1, "RMSNorm"),
        (None, 1, "RMSNorm"),
    ]
    export(model, tmp_path / "model")
    assert load(tmp_path / "model").config == config
    drawn = mixers_of(config)["W"].describe()
    assert (drawn["name"], drawn["title"], drawn["mask"]) == ("W", "Full attention, window 5", "window")
    assert drawn["color"] != mixers_of(config)["F"].color


def test_identity_holds_the_variants_in_use_with_all_their_options():
    def options(pattern: str, variants: dict, **mixers: dict) -> dict:
        config = with_variants(pattern, variants, **mixers)
        return used(config, architecture_of(config))

    assert options("FF", {"W": WINDOW}) == options("FF", {})
    assert "attention" not in options("WW", {"W": WINDOW})["mixers"]
    assert options("WF", {"W": WINDOW})["variants"]["W"].items() >= WINDOW.items()
    spelled = {**WINDOW, "qk_norm": True, "rope_base": 10000}  # a whole number, as YAML may have it
    assert options("WW", {"W": WINDOW}, attention={"qk_norm": True}) == options("WW", {"W": spelled})
    assert options("WF", {"W": WINDOW}) != options("WF", {"W": {**WINDOW, "window": 6}})


def test_matching_sets_the_widths_of_variants():
    config = with_variants("WWWF", {"W": WINDOW})
    matched = match(config, "state", seq_len=16, length=20)
    assert matched.variants["W"] == {**WINDOW, "head_width": 32}
    assert matched.mixers.attention.head_width == 8
    assert match(matched, "state", seq_len=16, length=20) == matched


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({"F": WINDOW}, "model.variants.F: F is the mixer attention; give the variant another name"),
        ({"kda": WINDOW}, "model.variants.kda: kda is the mixer kda"),
        ({"W": {"window": 5}}, "names no mixer; give one and its options"),
        ({"W": "attention"}, "names no mixer"),
        ({"W": {"mixer": "atention"}}, "did you mean 'attention'?"),
        (
            {"W": WINDOW, "V": {"mixer": "W"}},
            "model.variants.V.mixer=W is a variant itself; name a mixer, attention, ",
        ),
        ({"W": {**WINDOW, "windw": 5}}, "unknown key in model.variants.W 'windw'; did you mean 'window'?"),
        ({"W": {**WINDOW, "window": "x"}}, "model.variants.W.window='x' must be of type"),
        ({"W": {**WINDOW, "window": 0}}, "model.variants.W: attention.window=0 must be at least 1"),
        ({"W": {**WINDOW, "sinks": "some"}}, "unknown model.variants.W.sinks 'some'"),
        ({"a-b": WINDOW}, "a variant's name is a letter, or a word"),
        (
            {"W": {"mixer": "hypergraph"}, "V": {"mixer": "hypergraph", "aux_weight": 9.0}},
            "give variants of a mixer one weight",
        ),
    ],
)
def test_a_variant_that_is_none_is_refused(variants, said):
    def refused(config: ModelConfig) -> None:
        check_names(config)
        on_meta(config, vocab_size=11, seq_len=8)

    with pytest.raises(UserError) as caught:
        refused(with_variants("".join("{" + name + "}" for name in variants), variants))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("{W}F{nea}", "'{nea}' at position 5 is not a known mixer. Known letters: C, F, "),
        ("F{near", "'{' at position 2 opens a name that is never closed"),
        ("V", "'V' at position 1 is not a known mixer"),
    ],
)
def test_a_name_that_is_none_is_explained(pattern, said):
    with pytest.raises(UserError) as caught:
        architecture_of(with_variants(pattern, {"W": WINDOW, "near": WINDOW}))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "depth", "channels"),
    [
        ("moe", 3, "moe moe moe"),
        ("swiglu+moe", 4, "swiglu moe moe moe"),
        ("swiglu*3+moe", 5, "swiglu swiglu swiglu moe moe"),
        ("swiglu*3+moe", 2, "swiglu swiglu"),
        ("(swiglu+moe)", 5, "swiglu moe swiglu moe swiglu"),
        ("mlp+(swiglu+moe)*2", 7, "mlp swiglu moe swiglu moe swiglu moe"),
    ],
)
def test_channel_mixers_by_layer_go_on_with_the_last_item(name, depth, channels):
    assert read_channels(name, depth) == channels.split()
    config = ModelConfig(pattern="F", depth=depth)
    config.channel.name = name
    model = on_meta(config, vocab_size=11, seq_len=8)
    kinds = {"swiglu": SwiGLU, "mlp": MLP, "moe": MoE}
    assert [type(layer.channel) for layer in model.layers] == [kinds[x] for x in channels.split()]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "unknown channel mixer ''"),
        ("swigl", "did you mean 'swiglu'?"),
        ("swiglu+moee", "did you mean 'moe'?"),
        ("swiglu moe", "' ' at position 7 needs a + before it"),
        ("swiglu+", "'end' at position 8 is not a channel mixer. Known names: "),
        ("(moe", "'(' at position 1 is never closed"),
        ("moe*0+mlp", "'*' at position 4 must be followed by a number"),
        ("(moe*4096)*2", "model.channel.name=(moe*4096)*2 has more than 4096 layers"),
    ],
)
def test_channel_mixers_that_cannot_be_read_are_explained(name, said):
    config = ModelConfig()
    config.channel.name = name
    with pytest.raises(UserError) as caught:
        on_meta(config, vocab_size=11, seq_len=8)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_models_have_one_identity_however_their_channel_mixers_are_written():
    def options(name: str, depth: int = 4) -> dict:
        config = ModelConfig(depth=depth)
        config.channel.name = name
        return used(config, architecture_of(config))["channel"]

    assert options("swiglu+moe") == options("swiglu*1+moe*3") == options("swiglu+(moe+moe)")
    assert options("moe*9") == options("moe")
    assert options("moe").keys() == {"name", "moe"}
    assert options("swiglu+moe").keys() == {"name", "moe", "swiglu"}
    assert options("swiglu+moe") != options("swiglu*2+moe")

"""The pattern language: letters, repetition, groups, layouts, depth; and messages that help."""

import pytest

from zoo import LanguageModel, ModelConfig, UserError
from zoo.channels.mlp import MLP
from zoo.channels.moe import MoE
from zoo.channels.swiglu import SwiGLU
from zoo.config import LAYOUTS, MAX_LAYERS, layout_name, read_channels, read_pattern, used
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
    def options(name: str, letters: str = "FFFF") -> dict:
        config = ModelConfig()
        config.channel.name = name
        return used(config, letters)["channel"]

    assert options("swiglu+moe") == options("swiglu*1+moe*3") == options("swiglu+(moe+moe)")
    assert options("moe*9") == options("moe")
    assert options("moe").keys() == {"name", "moe"}
    assert options("swiglu+moe").keys() == {"name", "moe", "swiglu"}
    assert options("swiglu+moe") != options("swiglu*2+moe")

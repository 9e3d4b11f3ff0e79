"""The presets as people use them: matched, named, costed, sampled from."""

import pytest
import yaml
from support.program import Lab

from experiments.configuration.compose import architectures, differences_from_preset, presets_to_compare
from experiments.planning.plan import plan
from zoo import ModelConfig
from zoo.model import letters_of, on_meta

ELEVEN = presets_to_compare()


def test_the_eleven_are_all_presets_but_variants():
    assert len(ELEVEN) == 11
    assert ELEVEN[0] == "transformer"
    assert set(architectures(ModelConfig())) - set(ELEVEN) == {
        *("conv_pure", "kda_moe", "kda_pure", "lfm2_gqa", "swa", "swa_sinks")
    }


def test_variants_with_experts_and_with_grouped_queries_fit_every_size():
    for d_model, heads, kv_heads in ((64, 4, 2), (768, 12, 6), (1024, 16, 8), (2048, 32, 8)):
        models = architectures(ModelConfig(d_model=d_model, n_heads=heads, depth=4))
        lfm2 = on_meta(models["lfm2_gqa"], vocab_size=8, seq_len=8)
        assert [getattr(x.mixer, "kv_heads", None) for x in lfm2.layers] == [None, None, kv_heads, None]
        kda, sparse = (on_meta(models[name], vocab_size=8, seq_len=8) for name in ("kda", "kda_moe"))
        assert sparse.letters == kda.letters == "KKKL"
        assert {type(layer.channel).__name__ for layer in sparse.layers} == {"MoE"}
        used = 3 * sparse.layers[0].channel.up.shape[1]  # two routed experts and a shared one
        assert 1 <= used / kda.layers[0].channel.up.out_features < 1.1


@pytest.mark.slow
def test_matching_is_part_of_what_a_run_is(lab: Lab):
    plans = [plan(lab.compose("model=mla", *words)[0]) for words in ([], ["match=params"])]
    assert plans[0].run != plans[1].run
    assert plans[0].config.model.channel.swiglu.hidden is None
    hidden = plans[1].config.model.channel.swiglu.hidden
    assert plans[1].identity["model"]["channel"]["swiglu"]["hidden"] == hidden > 0
    saved = yaml.safe_load(plans[1].yaml())
    assert (saved["match"], saved["model"]["channel"]["swiglu"]["hidden"]) == ("params", hidden)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["model=shc"], "shc"),
        (["model=orthgsa", "model.residual.name=mhc"], "orthgsa mhc"),
        (["model=transformer", "model.residual.name=mhc"], "transformer mhc"),
        (["model=shc", "model.residual.name=add", "model.channel.name=moe"], "shc add moe"),
        (["model=transformer", "model.pattern=KKKF", "model.residual.name=hc"], "KKKF hc"),
        (["model=transformer", "model.pattern=SSFC", "model.depth=12"], "(SSFC)*3"),
        (["model=transformer", "model.pattern=K"], "kda K*4"),
        (["model=transformer", "model.mixers.attention.value_gate=true"], "transformer value_gate"),
        (["model=transformer", "model.mixers.kda.neg_eigval=true"], "transformer"),  # no mixer of this model
        (["model=lfm2", "model.mixers.attention.qk_norm=false"], "lfm2 no qk_norm"),  # which the preset sets
        (["model=hypergraph", "model.mixers.hypergraph.aux_weight=0"], "hypergraph aux_weight=0"),
        (["model=orthgsa", "model.residual.ohc.gain=0.3"], "orthgsa gain=0.3"),
        (
            ["model=transformer", "model.residual.name=ohc", "model.residual.ohc.gain=null"],
            "transformer ohc gain=null",
        ),
        (
            ["model=transformer", "model.residual.ohc.gain=0.3", "model.channel.swiglu.hidden=64"],
            "transformer",
        ),
    ],
)
def test_a_label_says_what_departs_from_the_preset(lab: Lab, words: list[str], label: str):
    (config,) = lab.compose("model.depth=4", *words)
    assert plan(config).title == f"{label} seed 0"


@pytest.mark.parametrize("preset", architectures(ModelConfig()))
def test_a_preset_as_it_is_departs_in_nothing(preset: str):
    """Whatever its own file sets is no departure, or it stood in the name of each of its runs."""
    config = architectures(ModelConfig())[preset]
    assert differences_from_preset(config, letters_of(config)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.backend=foo"], "unknown model.backend 'foo'"),
        (["model=kda", "model.backend=varlen", "model.depth=1"], "use model.backend=auto"),
        (["cost.lengths=5"], "cost.lengths must be a list; write cost.lengths=[A,B]"),
        (["data.seq_len=0"], "data.seq_len=0 must be at least 1"),
        (["model=mom", "model.mixers.mom.head_width=0"], "mom.head_width=0 must be at least 1"),
        (["model=orthgsa", "model.mixers.gsa.aux_weight=-1"], "indexer_kl is -1.0; it must be at least 0"),
        (["model.d_model=63"], "choose an even model.d_model"),
    ],
    ids=str,
)
def test_costs_of_what_cannot_be_are_refused(lab: Lab, words: list[str], message: str):
    assert message in lab.refused("job=cost", *words)

"""Every published study can be traced to its commands and runs; the presets as people use them."""

import functools
import re
import shutil
from pathlib import Path

import pytest
import yaml
from support.program import ROOT, Lab

from analysis import load_results, publishing
from analysis.comparing.verdicts import LEVELS
from analysis.publishing import missing_parts
from experiments.configuration.compose import architectures, differences_from_preset, presets_to_compare
from experiments.data.config import DataConfig
from experiments.data.task_set import TaskSet
from experiments.planning.identity import as_format_1, identify, recorded_config, run_name
from experiments.planning.plan import plan
from zoo import ModelConfig, registry
from zoo.config import architecture_of, from_dict
from zoo.model import on_meta

STUDIES = sorted(path.parent for path in (ROOT / "results" / "published").glob("*/runs.parquet"))


def test_there_are_studies_and_nothing_else_in_folders():
    folders = sorted(path for path in (ROOT / "results" / "published").iterdir() if path.is_dir())
    assert folders == STUDIES
    assert len(STUDIES) >= 6


@functools.cache
def parts(study: Path):
    return (*publishing.read_configurations(study), load_results(study).runs)


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_published_folder_says_where_it_comes_from(study):
    assert missing_parts(study) == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
@pytest.mark.slow
def test_published_runs_are_found_by_their_configurations(study):
    """The name of a run follows from its configuration and its text, today as on the day of the run."""
    if study.name == "verdict_ema" and "ema" not in registry.blocks("mixer"):
        pytest.skip(
            "its block is README's example: tests/test_documented_blocks.py finds it, in a tree that has it"
        )
    configs, identities, runs = parts(study)
    for row in runs.itertuples():
        config = recorded_config(configs[row.run])
        identity = identify(config, architecture_of(config.model), row.data_fingerprint)
        if identities[row.run]["format"] == 1:
            identity = as_format_1(identity, config.evaluate.splits)
        assert identity == identities[row.run], row.run
        assert run_name(identity) == row.run
        assert (config.seed, config.optim.lr, architecture_of(config.model).letters) == (
            row.seed,
            row.lr,
            row.pattern,
        )


@pytest.mark.long
def test_levels_of_published_tasks_follow_from_the_settings_of_their_runs():
    """What chance, copying and a memory get right is measured again, once for each setting of a task and its steps."""
    told, measured = {}, {}
    for study in STUDIES:
        configs, _, runs = parts(study)
        runs = runs.assign(sequences=runs["steps"] * runs["batch_size"] * runs["accumulate"])
        for (content, count), group in runs[runs["chance"].notna()].groupby(
            ["data_fingerprint", "sequences"]
        ):
            made = TaskSet(
                from_dict(DataConfig, configs[group["run"].iloc[0]]["data"], "data", recorded=True)
            )
            assert made.fingerprint == content, study.name
            key = study.name, made.label, count
            told[key] = list(group[list(LEVELS)].drop_duplicates().itertuples(index=False))
            measured[key] = [(made.task.chance, made.shortcut.accuracy, made.memorised(count))]
    assert len(told) >= 20
    assert told == {key: [pytest.approx(levels)] for key, (levels,) in measured.items()}


@pytest.mark.slow
def test_a_folder_without_its_readme_is_seen(tmp_path):
    study = shutil.copytree(next(path for path in STUDIES if path.name == "sinks"), tmp_path / "sinks")
    (study / "README.md").unlink()
    assert "no README.md" in missing_parts(study)


def figures_of(study: Path) -> tuple[set[str], set[str]]:
    """The figures that a study was published with: those whose picture was kept, and those that its README names."""
    page = (study / "README.md").read_text()
    (rest,) = re.findall(
        r"^- not here: (.*); `python run\.py job=report runs=results/published/(\w+)` draws", page, re.M
    ) or [("", study.name)]
    names, place = rest
    assert place == study.name
    return {path.stem for path in study.glob("*.[ps][nv]g")}, set(re.findall(r"`(\w+)`", names))


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_figure_of_a_study_is_there_or_said_to_be_drawn_again(study):
    kept, rest = figures_of(study)
    asked = re.search(r"figures=\[([\w,]*)\]", publishing.read_provenance(study).command)
    assert kept | rest == set(asked[1].split(",") if asked else ())
    assert not kept & rest
    assert len(kept) <= 3
    assert {path.stem for path in study.glob("*.txt")} == kept


@pytest.mark.long
def test_a_report_draws_the_figures_that_were_not_kept(lab: Lab):
    """From the tables of the study alone, by the command of its README."""
    study = next(path for path in STUDIES if path.name == "papers_recall")
    kept, rest = figures_of(study)
    assert len(rest) == 2
    place = shutil.copytree(study, lab.results / "published" / study.name)
    done = lab.here("job=report", f"runs={place}")
    assert (done.status, done.err) == (0, "")
    for suffix in (".png", ".svg", ".csv"):
        assert kept | rest <= {path.stem for path in (place / "report" / "figures").glob(f"*{suffix}")}


@pytest.mark.long
def test_the_job_publishes_a_study_again_and_speaks_in_one_line(lab: Lab):
    study = next(path for path in STUDIES if path.name == "extrapolation")
    words = ["job=publish", f"runs={study}", "source=somewhere"]
    error = lab.refused(*words)
    assert error.startswith("error: job=publish needs the study's question")
    assert error.count("\n") == 1
    done = lab.here(*words, "question=Do all eleven train?")
    assert (done.status, done.err) == (0, "")
    folder = lab.results / "published" / "extrapolation"
    assert missing_parts(folder) == []
    page = (folder / "README.md").read_text()
    assert "'question=Do all eleven train?'" in page
    assert "runs=extrapolation" in page  # the last part of this machine's path
    assert str(ROOT) not in page
    (folder / "README.md").unlink()
    shutil.move(folder, lab.results / "moved")
    folder.symlink_to(lab.folder)
    error = lab.refused(*words, "question=Do all eleven train?")
    assert "nothing is written through links" in error
    assert error.count("\n") == 1


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
    assert differences_from_preset(config, architecture_of(config)) == []


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

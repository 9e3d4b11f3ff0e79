"""start.weights: a run goes on from the weights of another, as it was or as OrthGSA, and learns in stages."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support.program import TINY, Lab, steady_rows
from support.published import saved, with_tokenizer

from experiments.runs import step_folder
from zoo.io import WEIGHTS

pytestmark = pytest.mark.slow
PLAIN = ("model=transformer", "model.mixers.attention.qk_norm=true", "trainer.max_steps=2", "name=plain")
STAGES = ("+experiment=convert", "start.indexer=0.2", "start.gates=0.3", "trainer.max_steps=10")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, small_text, shared_cache) -> Path:
    lab = Lab(tmp_path_factory.mktemp("plain") / "lab", small_text, shared_cache)
    assert lab.here(*PLAIN).status == 0
    return lab.run_folder()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / WEIGHTS)


def bare(lab: Lab) -> Lab:
    """A lab whose commands name no model: it is that of the weights."""
    own = {word for word in TINY if word.startswith("model")}
    lab.arguments = lambda *words: [x for x in Lab.arguments(lab, *words) if x not in own]
    return lab


def test_a_run_goes_on_with_another_s_weights(lab, plain):
    words = (f"start.weights={plain}", "trainer.max_steps=1", "optim.lr=1e-30", "optim.lr_min=0")
    done = bare(lab).here(*words, "evaluate.splits=[]", "seed=5")
    assert done.status == 0, done.err
    assert "transformer qk_norm continued seed 5" in done.out
    before, after = weights(plain), weights(lab.run_folder())
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if x.is_floating_point())


def test_indexers_learn_first_then_gates_and_coefficients_then_everything(lab, plain):
    kept = "trainer.keep_steps=[2,5]"
    done = bare(lab).here(*STAGES, f"start.weights={plain}", kept, "evaluate.splits=[]")
    assert done.status == 0, done.err
    run, source = lab.run_folder(), weights(plain)
    second, fifth, last = (weights(step_folder(run, 2)), weights(step_folder(run, 5)), weights(run))

    def moved(a: dict, b: dict) -> set[str]:
        """What a name ends with or its module, of the parameters that differ."""
        names = {name for name, x in a.items() if x.is_floating_point() and not torch.equal(x, b[name])}
        kinds = ("indexer", "_gate", "residual")
        return {next((kind for kind in kinds if kind in name), "other") for name in names}

    copied = {n: 2 * x if n.endswith(("v_proj.weight", "o_proj.weight")) and ".mixer." in n else x
              for n, x in source.items()}  # fmt: skip
    assert moved(copied, second) == set()
    assert not any(second[name].any() for name in second if name.endswith("_gate.weight"))
    assert moved(second, fifth) == {"indexer", "_gate", "residual"}
    assert moved(fifth, last) == {"indexer", "_gate", "residual", "other"}


@pytest.mark.long
def test_a_paused_run_goes_on_through_its_stages_with_the_same_numbers(lab, plain):
    words = (*STAGES, f"start.weights={plain}", "evaluate.splits=[]", "trainer.log_every=1")
    assert bare(lab).here(*words, "name=whole").status == 0
    assert lab.here(*words, "name=paused", "trainer.pause_at=3").status != 0
    assert lab.here(*words, "name=paused").status == 0
    paused, whole = lab.run_folders()
    assert paused.name == whole.name  # the name of the experiment is no part of it
    assert steady_rows(paused) == steady_rows(whole)
    assert all(torch.equal(x, weights(whole)[name]) for name, x in weights(paused).items())


def test_the_weights_name_the_run_and_their_place_does_not(lab, plain, tmp_path):
    other = shutil.copytree(plain, tmp_path / "other")
    words = ("--multirun", "dry=true", *STAGES)
    moved = [bare(lab).here(*words, f"start.weights={place}").out for place in (plain, other)]
    changed = weights(other)
    changed["norm.weight"] += 1
    safetensors.torch.save_file(changed, other / WEIGHTS)
    again = lab.here(*words, f"start.weights={other}").out
    assert moved[0] == moved[1] != again


@pytest.mark.long
def test_a_published_model_goes_on_as_orthgsa_in_its_own_tokens(lab, tmp_path):
    folder, _ = saved(tmp_path / "tiny", "Qwen3", vocab_size=300, tie_word_embeddings=True)
    with_tokenizer(folder)
    lab.arguments = lambda *words: [
        x for x in Lab.arguments(lab, *words) if not x.startswith(("model", "data.tok"))
    ]
    lab.done("+experiment=convert", f"start.weights={folder}", "trainer.max_steps=2")
    assert weights(lab.run_folder())["embedding.weight"].shape == (300, 32)  # more than the tokenizer's 290
    assert lab.here("job=generate", f"run={lab.run_folder()}", "generate.tokens=3").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("start.into=gsa",), "need weights to begin with: start.weights=FOLDER"),
        (("start.weights=nowhere",), "start.weights=nowhere holds no weights"),
        (("start.weights={plain}", "match=params"), "match=params changes widths"),
        (("start.weights={plain}", "start.sha256=00"), "holds other weights than those of start.sha256=00"),
        (("start.weights={plain}", "model.d_model=32"), "model.d_model is that of start.weights="),
        (("start.weights={plain}", "start.indexer=0.1"), "no block of this model has an indexer"),
        (("start.weights={plain}", "data=mqar"), "knows 257 tokens and data=mqar has"),
        (
            ("+experiment=convert", "start.weights={plain}", "model.mixers.gsa.warmup=0"),
            "gsa.warmup=0 would begin with sparse attention",
        ),
    ],
)
def test_what_cannot_begin_is_refused_in_one_line(lab, plain, words, said):
    words = [word.format(plain=plain) for word in words]
    text = ("data.path=null", "data.tokenizer=bpe", "data.seq_len=128") if "data=mqar" in words else ()
    done = bare(lab).here(*words, *text)
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not lab.results.exists()

"""trainer.context: a run whose sequences lie on several devices learns what one process learns."""

import pytest
from support.program import Lab, steady_rows
from support.task_lab import TaskLab

from experiments.planning.plan import check_config, plan
from experiments.runs import RunFolder
from zoo.errors import UserError

MODEL = ["model=transformer", "model.pattern=KF", "model.depth=2", "trainer.log_every=1"]
CUT = ["trainer.devices=2", "trainer.context=2"]
CASES = {
    "ddp": CUT,
    "fsdp": [*CUT, "trainer.strategy=fsdp"],
    "documents": [*CUT, "data.pack=document", "model.pattern=GS"],
    "beside data parallelism": ["trainer.devices=4", "trainer.context=2", "trainer.accumulate=2"],
    "documents beside it": [
        *("trainer.devices=4", "trainer.context=2", "trainer.accumulate=2"),
        *("data.pack=document", "model.pattern=GS"),
    ],
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_shards_learn_what_one_process_learns(case, tmp_path, small_text, shared_cache):
    """Loss and gradient norm of 20 steps: to rounding, which twenty steps of AdamW make larger.

    A gradient that lacks another shard's part, or is divided by the shards, has another norm.
    """
    own = [word for word in CASES[case] if word.split("=")[0] not in ("trainer.devices", "trainer.context")]
    one, cut = (Lab(tmp_path / name, small_text, shared_cache) for name in ("one", "cut"))
    for lab, words in ((one, own), (cut, CASES[case])):
        lab.done(*{w.partition("=")[0]: w for w in (*MODEL, *words)}.values())
    assert one.run_folder().name == cut.run_folder().name
    pairs = list(zip(steady_rows(one.run_folder()), steady_rows(cut.run_folder()), strict=True))
    assert sum(a["split"] == "train" for a, _ in pairs) == 20
    for a, b in pairs:
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
        if a["split"] == "train":
            assert float(a["grad_norm"]) == pytest.approx(float(b["grad_norm"]), rel=1e-3)
    found, wanted = (RunFolder(lab.run_folder()).summary() for lab in (cut, one))
    assert found["processes"] == int(CASES[case][0].rpartition("=")[2])
    assert found["metrics"]["test"]["loss"] == pytest.approx(wanted["metrics"]["test"]["loss"], rel=1e-5)
    assert found["metrics"]["test"]["tokens"] == wanted["metrics"]["test"]["tokens"]


@pytest.mark.slow
def test_shards_are_no_part_of_what_a_run_is(lab: Lab):
    plain, cut = (plan(lab.compose(*MODEL, *words)[0]) for words in ([], CUT))
    assert plain.run == cut.run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.context=2"], "and there are 1 .* trainer.devices=2"),
        (["trainer.context=3", "trainer.devices=3"], "give a length divisible by it, data.seq_len=33"),
        ([*CUT, "trainer.compile=true"], "does not go with trainer.compile=true"),
        (
            ["trainer.context=2", "trainer.devices=4"],
            "4 devices in groups of 2; give a multiple, trainer.accumulate=2",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(lab: Lab, words: list[str], said: str):
    (config,) = lab.compose(*words)
    with pytest.raises(UserError, match=said):
        check_config(config)


@pytest.mark.slow
def test_sequences_of_tasks_are_not_cut(task_lab: TaskLab):
    (config,) = task_lab.compose(*CUT)
    with pytest.raises(UserError, match=r"trainer.context=2 needs a text, but data=mqar is a task"):
        check_config(config)

"""Learning rates out of a published study: optim.lr_study."""

import pytest
from support.program import Lab

from experiments.configuration.schema import OptimConfig
from experiments.planning import plan as planning
from experiments.planning.plan import plan

RECORD = """model,lr,chosen
transformer,0.003,False
transformer,0.01,True
kda,0.001,True
kda,0.001,True
"""  # of kda two seeds selected the rate


@pytest.fixture(autouse=True)
def studies(tmp_path, monkeypatch):
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "selection.csv").write_text(RECORD, encoding="utf-8")
    monkeypatch.setattr(planning, "PUBLISHED", tmp_path)
    planning._rates.cache_clear()
    yield
    planning._rates.cache_clear()


def planned(lab: Lab, *words: str) -> planning.Plan:
    return plan(*lab.compose("name=studied", *words))


@pytest.mark.parametrize(("model", "rate"), [("transformer", 1e-2), ("kda", 1e-3)])
@pytest.mark.slow
def test_a_model_takes_the_rate_selected_for_it_and_keeps_the_schedules_shape(lab, model, rate):
    optim = planned(lab, f"model={model}", "optim.lr_study=earlier").config.optim
    assert (optim.lr, optim.lr_study) == (rate, "earlier")
    assert optim.lr_min / optim.lr == pytest.approx(OptimConfig.lr_min / OptimConfig.lr)


@pytest.mark.slow
def test_a_run_is_named_by_the_rate_wherever_it_comes_from(lab: Lab):
    words = ["optim.lr_study=earlier"], ["optim.lr=1e-2", "optim.lr_min=1e-3"]
    by_study, by_hand = (planned(lab, "model=transformer", *each) for each in words)
    assert by_study.run == by_hand.run
    assert plan(by_study.config).run == by_study.run  # a plan is planned again by a worker of a sweep


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optim.lr_study=earlie"], "did you mean 'earlier'?"),
        (["optim.lr_study=earlier", "model=nsa"], "has no learning rate for nsa, only for transformer, kda"),
        (
            ["optim.lr_study=earlier", "model=kda", "optim.lr=1e-4", "optim.lr_min=0"],
            "both set the learning rate",
        ),
    ],
)
def test_a_rate_that_the_study_does_not_give_is_refused(lab: Lab, words: list[str], says: str):
    assert says in lab.refused("name=studied", *words)

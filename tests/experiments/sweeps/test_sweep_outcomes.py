"""How a sweep tells what became of a cell whose worker ended."""

import pytest
from support.program import Lab

from experiments import engines
from experiments.engines.engine import State
from experiments.engines.pool import Pool
from experiments.engines.preloaded_worker import exit_reason
from experiments.jobs import train
from experiments.planning.plan import Plan, plan
from experiments.sweep import Sweep, cell_names
from zoo.errors import UserError


@pytest.fixture
def planned(lab: Lab) -> Plan:
    (config,) = lab.compose()
    made = plan(config)
    made.folder.begin(made.yaml(), made.identity, {})
    return made


def told(planned: Plan, status: int | None, capsys) -> tuple[str, int]:
    """What is printed of a cell whose worker ended so, and how many failures the sweep counts."""
    made = Sweep(Pool([planned]), [planned])
    made._finish(planned, State(ended=True, status=status, why=exit_reason(status)))
    made.display.close()
    return capsys.readouterr().out, len(made.failed)


@pytest.mark.slow
def test_a_worker_that_failed_tells_its_record(planned: Plan, capsys):
    planned.folder.fail(ValueError("the loss is not finite"))
    out, failed = told(planned, 1, capsys)
    assert f"FAILED: the loss is not finite ({planned.folder.path})" in out
    assert failed == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [(-9, "killed by signal 9"), (143, "stopped with status 143"), (0, "stopped with status 0")],
)
def test_a_killed_worker_does_not_tell_the_failure_of_an_earlier_attempt(planned, capsys, status, said):
    planned.folder.fail(ValueError("an older story"))
    out, failed = told(planned, status, capsys)
    assert f"FAILED: {said} ({planned.folder.path})" in out
    assert "older story" not in out
    assert failed == 1


@pytest.mark.slow
def test_equal_cells_are_trained_once(lab: Lab, monkeypatch, capsys):
    trained = []

    class AtOnce(Pool):
        def submit(self, planned: Plan) -> None:
            assert self.capacity == 2
            trained.append(planned)
            planned.folder.begin(planned.yaml(), planned.identity, {})
            planned.folder.finish({"metrics": {"test": {"loss": 1.0, "bits_per_byte": 1.0}}})

        def changed(self) -> list[Plan]:
            return list(trained)

        def state(self, planned: Plan) -> State:
            return State(ended=True, status=0)

    monkeypatch.setattr(engines, "make_engine", AtOnce)
    train.run_sweep(lab.compose("--multirun", "seed=0,1,1,0", "sweep.workers=3"))
    assert [p.config.seed for p in trained] == [0, 1]
    assert "2 cells: 0 complete, 2 to train" in capsys.readouterr().out


def test_one_run_in_two_folders_is_refused(lab: Lab):
    with pytest.raises(UserError, match=r"a/\w+ and .*b/\w+ would be the same run"):
        train.run_sweep(lab.compose("--multirun", "name=a,b"))


@pytest.mark.slow
def test_names_of_cells_leave_out_what_all_share(lab: Lab):
    shared = ["model=transformer", "model.channel.name=moe"]
    plans = [plan(config) for config in lab.compose("--multirun", *shared, "model.residual.name=add,mhc")]
    assert [p.title for p in plans] == ["transformer moe seed 0", "transformer mhc moe seed 0"]
    assert list(cell_names(plans).values()) == ["transformer seed 0", "transformer mhc seed 0"]
    assert list(cell_names(plans[:1]).values()) == [plans[0].title]


@pytest.mark.slow
def test_a_complete_run_has_not_failed_whatever_an_attempt_before_left(planned: Plan):
    """A process may be killed between writing the summary and removing the record."""
    planned.folder.fail(ValueError("an older story"))
    assert planned.folder.failed
    (planned.folder.path / "summary.json").write_text("{}")
    assert planned.folder.complete
    assert not planned.folder.failed


@pytest.mark.long
def test_cells_that_paused_have_not_failed_and_the_command_says_how_to_go_on(lab: Lab):
    words = ["--multirun", "seed=0,1", "model.depth=1", "model.d_model=16", "trainer.max_steps=4"]
    outcome = lab.here(*words, "trainer.pause_at=2")
    assert outcome.status == 1
    assert outcome.out.count("paused\n") == 2
    assert "2 of 2 cells paused; the same command without trainer.pause_at resumes them" in outcome.err
    again = lab.here(*words)
    assert (again.status, again.out.count(": done")) == (0, 2), again.err

"""sweep.engine=ray on two nodes of this machine: twelve cells, a worker killed, a node removed, the sweep killed."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.program import Lab
from support.sweeps import (
    CELL,
    STEPS,
    TWELVE,
    assert_as_undisturbed,
    first_rows,
    processes,
    steps_of,
    under_way,
    wait_until,
)

ray = pytest.importorskip("ray", reason="sweep.engine=ray needs ray (the extra ray)")
from ray.cluster_utils import Cluster  # noqa: E402

TASK, STARTER = "ray::default/", "experiments.engines.preloaded_worker"
"""In the command lines of a process of Ray's that has a task, and of the one that starts its cells."""


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Cluster]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    yield made
    ray.shutdown()  # a test that fails may have left this process connected, and then nodes cannot be removed
    made.shutdown()


def working(lab: Lab, words: str) -> list[psutil.Process]:
    """Processes of a cell's task in the working folder of the lab, which tasks enter: other tests may be running."""
    found = []
    for process in processes(words):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found += [process] if process.cwd() == str(lab.cwd) else []
    return found


def owners(lab: Lab) -> list[str]:
    """The names of actors that own tasks of the lab, in the cluster to which this process is connected."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in names if str(lab.results) in name]


def ends(true: Callable[[], bool], what: str) -> None:
    """Wait a while until it holds."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, f"{what} are left"
        time.sleep(0.2)


@pytest.mark.long
def test_twelve_cells_a_killed_worker_a_removed_node_and_a_killed_sweep_change_nothing(
    tmp_path: Path, small_text: Path, shared_cache: Path, cluster: Cluster
):
    torn, whole = (Lab(tmp_path / name, small_text, shared_cache) for name in ("torn", "whole"))
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    on_ray = ["sweep.engine=ray", f"sweep.ray.address={cluster.address}", "sweep.ray.poll_s=0.2"]
    first = torn.start(*TWELVE, *on_ray)
    wait_until(lambda: len(under_way(torn)) == 2, first)
    begun = first_rows(under_way(torn))
    first.popen.kill()
    assert len(working(torn, TASK)) == 2, "tasks outlive the command that submitted them"
    again = torn.run(*TWELVE, *on_ray, "sweep.action=submit")
    assert again.out.count(": submitted before\n") == 12, again
    cluster.remove_node(node, allow_graceful=False)
    second = torn.start(*TWELVE, *on_ray)
    wait_until(lambda: bool(working(torn, TASK)), second)
    working(torn, TASK)[0].kill()
    outcome = second.wait(900)
    assert outcome.status == 0, outcome
    assert "Traceback" not in outcome.out + outcome.err
    ends(lambda: not working(torn, STARTER), "processes that start cells")
    assert whole.run(*TWELVE).status == 0
    assert_as_undisturbed(torn, whole, begun)


@pytest.mark.long
def test_cells_are_submitted_cancelled_and_go_on(lab: Lab, cluster: Cluster):
    command = ["--multirun", *CELL, "seed=0,1", "sweep.engine=ray", f"sweep.ray.address={cluster.address}"]
    submitted = lab.run(*command, "sweep.action=submit")
    assert submitted.status == 0, submitted
    assert "2 cells submitted; the same command without sweep.action=submit waits for them" in submitted.out
    deadline = time.monotonic() + 300
    while not under_way(lab):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cancelled = lab.run(*command, "sweep.action=cancel")
    assert cancelled.status == 0, cancelled
    assert "2 cells cancelled" in cancelled.out
    assert not list(lab.results.glob("*/*/summary.json"))
    last = lab.run(*command, "trainer.progress=true")
    assert last.status == 0, last
    assert ": waiting" in last.err, "there is one processor for two cells"
    for folder in lab.run_folders():
        assert steps_of(folder) == list(range(1, STEPS + 1)), folder


@pytest.mark.long
def test_a_cell_whose_own_process_is_killed_is_tried_again(lab: Lab, cluster: Cluster):
    command = ["--multirun", *CELL, "seed=0", "sweep.engine=ray", f"sweep.ray.address={cluster.address}"]
    sweep = lab.start(*command, "sweep.ray.poll_s=0.2")
    wait_until(lambda: bool(under_way(lab)), sweep)
    (cell,) = [child for starter in working(lab, STARTER) for child in starter.children()]
    cell.kill()
    outcome = sweep.wait(300)
    assert outcome.status == 0, outcome
    assert steps_of(lab.run_folder()) == list(range(1, STEPS + 1))


@pytest.mark.long
def test_a_command_that_waits_does_not_undo_a_cancellation_and_what_diverges_is_trained_once(lab, cluster):
    apart = [*CELL, "name=seed_${seed}"]
    command = ["--multirun", *apart, "sweep.engine=ray", f"sweep.ray.address={cluster.address}"]
    slow, fast = ([*command, f"sweep.ray.poll_s={seconds}"] for seconds in (6, 0.2))
    waits = lab.start(*slow, "seed=0")
    wait_until(lambda: bool(under_way(lab)), waits)
    cluster.connect()
    assert len(owners(lab)) == 1
    # The first of its two experiments has no cell with Ray.
    cancelled = lab.run(*fast, "seed=2,0", "sweep.action=cancel")
    assert "1 cells cancelled" in cancelled.out, cancelled
    outcome = waits.wait()
    assert outcome.status == 1, outcome
    assert "FAILED: cancelled" in outcome.out
    assert not list(lab.results.glob("*/*/summary.json"))
    both = [lab.start(*poll, "seed=1", "optim.lr=1e30") for poll in (slow, fast)]
    ends(lambda: not all(process.running for process in both), "commands")
    (record,) = lab.results.glob("seed_1/*/failure.json")
    written = record.stat().st_mtime_ns
    for process in both:
        outcome = process.wait()
        assert outcome.status == 1, outcome
        assert outcome.out.count("is not finite at step 1") == 1
    assert record.stat().st_mtime_ns == written, "the cell was trained again"
    ends(lambda: not owners(lab), "owners of tasks")


@pytest.mark.long
def test_a_paused_cell_is_submitted_again_and_what_no_node_has_is_refused(lab: Lab, cluster: Cluster):
    command = ["--multirun", *CELL, "seed=0", "sweep.engine=ray", f"sweep.ray.address={cluster.address}"]
    refused = lab.run(*command, "sweep.ray.gpus=1")
    assert refused.status == 2, refused
    assert (
        "sweep.ray.gpus=1 on one node, and the nodes of the Ray cluster have 1 CPUs and 0 GPUs" in refused.err
    )
    assert not list(lab.results.glob("*/.cells/*")), "nothing was submitted"
    paused = lab.run(*command, "trainer.pause_at=30", "sweep.action=submit")
    assert paused.out.count(": submitted\n") == 1, paused
    ends(lambda: steps_of(lab.run_folder())[-1:] == [30] if lab.run_folders() else False, "steps")
    ends(lambda: not working(lab, TASK), "tasks")
    again = lab.run(*command, "sweep.action=submit")
    assert again.out.count(": submitted\n") == 1, again
    last = lab.run(*command)
    assert last.status == 0, last
    assert steps_of(lab.run_folder()) == list(range(1, STEPS + 1))

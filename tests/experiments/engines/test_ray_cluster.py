"""sweep.engine=ray on two nodes of this machine: a worker killed, a node removed, the sweep killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import Lab
from support.sweeps import CELL, assert_as_undisturbed, processes, under_way, wait_until

ray = pytest.importorskip("ray", reason="sweep.engine=ray needs ray (the extra ray)")
from ray.cluster_utils import Cluster  # noqa: E402


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Cluster]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    yield made
    made.shutdown()


@pytest.mark.long
def test_a_killed_worker_a_removed_node_and_a_killed_sweep_change_nothing(
    tmp_path: Path, small_text: Path, shared_cache: Path, cluster: Cluster
):
    torn, whole = (Lab(tmp_path / name, small_text, shared_cache) for name in ("torn", "whole"))
    node = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    command = ["--multirun", *CELL, "seed=0,1,2"]
    on_ray = ["sweep.engine=ray", f"sweep.ray.address={cluster.address}", "sweep.ray.poll_s=0.2"]
    first = torn.start(*command, *on_ray)
    wait_until(lambda: len(under_way(torn)) == 2, first)
    first.popen.kill()
    workers = processes("ray::train")
    assert len(workers) == 2, "tasks outlive the command that submitted them"
    cluster.remove_node(node, allow_graceful=False)
    second = torn.start(*command, *on_ray)
    wait_until(lambda: bool(processes("ray::train")), second)
    processes("ray::train")[0].kill()
    outcome = second.wait()
    assert outcome.status == 0, outcome
    assert "Traceback" not in outcome.out + outcome.err
    assert whole.run(*command).status == 0
    assert_as_undisturbed(torn, whole)

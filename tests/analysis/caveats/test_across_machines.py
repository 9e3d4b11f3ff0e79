"""The same runs on two machines: what differs, what changes its rank, and what a report says of it."""

import pytest

from analysis import across_machines, load_results
from analysis.caveats import caveats

LOSSES = {"one": (3.00, 3.10), "two": (3.04, 3.08), "three": (3.30, 3.20)}
MOVED = {"one": (0.09, 0.05), "two": (-0.01, 0.01), "three": (0.0, 0.0)}


@pytest.fixture
def both(tmp_path, write_run):
    """Three models with two seeds on two machines: on the second the first model falls behind the second."""
    for machine, capability in (("a", "AVX512"), ("b", "AVX2")):
        for name, losses in LOSSES.items():
            for seed, loss in enumerate(losses):
                moved = MOVED[name][seed] if machine == "b" else 0.0
                write_run(
                    tmp_path / machine / "exp", name, seed, loss + moved,
                    model={"residual": name}, machine={"capability": capability},
                )  # fmt: skip
    return tmp_path / "a" / "exp", tmp_path / "b" / "exp"


def test_every_common_run_has_both_losses_and_the_ranks_of_its_model(both):
    table = across_machines(*both)
    assert table.attrs["metric"] == "test_loss"
    assert len(table) == 6
    rows = table.set_index(["label", "seed"])
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            row = rows.loc[(name, seed)]
            assert row["loss_a"] == pytest.approx(loss)
            assert row["difference"] == pytest.approx(MOVED[name][seed])
    assert rows["rank_a"].to_dict() == {
        (n, s): r for n, r in (("one", 1), ("two", 2), ("three", 3)) for s in (0, 1)
    }
    assert rows["rank_b"].xs(0, level="seed").to_dict() == {"one": 2, "two": 1, "three": 3}
    assert set(table["machine_a"]) == {"Example CPU, AVX512, 1 thread(s)"}
    assert set(table["machine_b"]) == {"Example CPU, AVX2, 1 thread(s)"}


@pytest.mark.slow
def test_a_report_of_two_says_how_far_the_same_ids_are_apart(both):
    said = caveats(load_results(both))
    assert not any(text.startswith("numbers of one machine") for text in said)
    (mixed,) = [text for text in said if text.startswith("mixed machines")]
    assert "AVX512, 1 thread(s) (6 runs)" in mixed
    assert "losses differ by rounding" in mixed
    (same,) = [text for text in said if "from several machines" in text]
    assert same.startswith("6 run(s) come from several machines")
    assert "test loss differs by up to 0.0900 (one seed 0)" in same


def test_machines_of_an_older_version_are_told_apart_by_their_processor(tmp_path, write_run):
    for seed, cpu in enumerate(("Old CPU", "Other CPU")):
        write_run(tmp_path / "exp", seed=seed, machine={"host_cpu": cpu, "capability": None})
    said = " ".join(caveats(load_results(tmp_path / "exp")))
    assert "Old CPU, 1 thread(s) (1 run)" in said

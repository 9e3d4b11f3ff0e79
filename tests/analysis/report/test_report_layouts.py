"""The report's tables of named layouts have the columns and the order of the HyperGraph report."""

import pytest
from support.probe_tables import measure, write_table
from support.residual_tables import ROUTERS

from analysis import load_results
from analysis.report.columns import layouts

# By layout (None: the dense baseline): pattern, validation and test loss by seed, imbalance of the heads by seed.
# By test loss the first two stand the other way round.
LAYOUTS = {
    None: ("FFFF", [(2.90, 2.96), (2.92, 2.98)], None),
    "interlaced_sf": ("SFSF", [(2.91, 2.95), (2.93, 2.97)], [(1.0, 1.1, 1.2, 1.3), (1.1, 1.2, 1.3, 1.4)]),
    "bookend": ("FSSF", [(2.99, 3.00), (2.99, 3.00)], [(1.0, 1.0, 1.1, 1.1), (1.0, 1.0, 1.1, 1.1)]),
}


def write_layouts(experiment, write_run, split: str | None = "test"):
    for layout, (pattern, losses, heads) in LAYOUTS.items():
        for seed, (validation, test) in enumerate(losses):
            model = {"preset": "x" if layout else "transformer", "layout": layout, "pattern": pattern}
            name = f"x {layout}" if layout else "transformer"
            run = write_run(
                experiment, name, seed, test, validation_loss=validation, model=model, blocks=ROUTERS
            )
            if heads is None:
                continue
            at = {"part": "mixer", "block": "hypergraph", "count": 283_287, "split": split}
            write_table(
                run,
                "measures",
                [
                    measure("imbalance", value, layer=place // 2, head=place % 2, **at)
                    for place, value in enumerate(heads[seed])
                ]
                + [
                    measure("load", 0.5, layer=0, head=0, axis="expert", start=e, end=e + 1, **at)
                    for e in (0, 1)
                ],
            )
    return load_results(experiment)


@pytest.mark.slow
def test_quality_by_validation_loss_and_balance_by_imbalance(tmp_path, write_run):
    found = layouts(write_layouts(tmp_path / "exp", write_run))
    assert list(found.quality["layout"]) == ["transformer", "interlaced_sf", "bookend"]
    assert found.quality["validation_loss"].tolist() == pytest.approx([2.91, 2.92, 2.99])
    assert list(found.balance["layout"]) == ["bookend", "interlaced_sf"]
    assert found.balance["imbalance"].tolist() == pytest.approx([1.05, 1.2])
    assert found.balance["imbalance_ci"].tolist() == pytest.approx([0, 12.706 * 0.05], rel=1e-3)
    assert list(found.balance["notes"]) == ["best balance", "best test loss"]
    assert found.balance_note == "Counted on the test split."

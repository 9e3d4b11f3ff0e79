"""What the claim on attention sinks needs, and of whom: gates take a sink away from a model that would have one."""

from types import SimpleNamespace

import pandas as pd
import pytest

from analysis.evidence.claims import orthgsa
from analysis.evidence.ledger.rules import Check, Lack


def judged(monkeypatch, plain: float, gated: float) -> list:
    """The parts of the claim for mean shares on the first token, three seeds each."""
    rows = [
        {"label": label, "run": f"{label}{seed}", "value": share + 0.001 * seed}
        for label, share in (("transformer", plain), ("orthgsa", gated))
        for seed in range(3)
    ]
    runs = pd.DataFrame({"gpu": [None], "cpu": ["a"], "commit": ["b"], "experiment": ["sinks"]})
    monkeypatch.setattr(orthgsa, "summary_rows", lambda study, measure: pd.DataFrame(rows))
    gate = Check("largest output gate", 0.7, 0.7, 0.7)
    found = SimpleNamespace(
        checks=lambda claim: [gate], study=lambda name, command: SimpleNamespace(runs=runs)
    )
    return list(orthgsa.sinks(found))


def needed(parts: list, label: str):
    (check,) = (
        part for part in parts if isinstance(part, Check) and part.name.endswith(f"first token, {label}")
    )
    return check.needed


@pytest.mark.parametrize(("plain", "sinks"), [(0.5, True), (0.1, False)])
def test_only_gated_models_are_to_have_no_sink_and_only_where_the_plain_one_has(monkeypatch, plain, sinks):
    parts = judged(monkeypatch, plain, gated=0.02)
    assert needed(parts, "transformer") is None
    assert (needed(parts, "orthgsa") is not None) == sinks
    assert any(isinstance(part, Lack) for part in parts) != sinks

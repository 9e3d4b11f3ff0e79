"""The cost table of docs/architectures.md is what job=cost prints."""

import pytest
from support.program import ROOT, Lab

from experiments.configuration.compose import presets_to_compare


@pytest.mark.long
def test_the_page_shows_the_derived_costs(lab: Lab):
    shown = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    shown = shown.split("<!-- costs -->\n")[1].split("<!-- /costs -->")[0]
    lab.arguments = lambda *words: list(words)
    command = ["--multirun", "job=cost", "size=reference", f"model={','.join(presets_to_compare())}"]
    outcome = lab.here(*command)
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith(shown.strip() + "\n\n")

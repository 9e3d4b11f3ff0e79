"""The files that a reader meets between `python run.py model=kda` and its first loss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import opened_files
from support.program import Lab

MOST = 51
"""Layers of Kimi Linear, their operations, a text, checks and the trainer's parts; with a text that is read anew."""
MODELS = {"LanguageModel.__init__": 2, "meta_model": 1, "architecture_of": 3, "pick_device": 2}
"""Calls at most: a model without storage and the one that trains read their layers, and the label its preset's."""


@pytest.mark.slow
def test_a_plain_run_opens_few_files(lab: Lab):
    out = lab.folder / "files.json"
    words = lab.arguments("model=kda", "model.depth=4", "model.d_model=16", "model.n_heads=2")
    command = [sys.executable, str(Path(opened_files.__file__)), str(out), *words]
    done = subprocess.run(command, cwd=lab.cwd, capture_output=True, text=True)
    assert out.is_file(), done.stderr
    found = json.loads(out.read_text())
    assert {"experiments/training/lightning_modules.py", "zoo/mixers/kda.py"} <= set(found)
    named = "\n".join(f"{file}: {', '.join(names)}" for file, names in found.items())
    calls = {name: count for names in found.values() for name, count in names.items() if name in MODELS}
    assert all(1 <= calls[name] <= most for name, most in MODELS.items()), calls
    assert len(found) <= MOST, f"{len(found)} files; does a plain run need all of these?\n{named}"

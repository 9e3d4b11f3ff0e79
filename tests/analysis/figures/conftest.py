"""Tables of benches and probed runs to draw."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.probe_tables import MODELS, write_probes

from analysis import load_results
from analysis.loading.results import Results


@pytest.fixture
def inference_csv(tmp_path: Path) -> Path:
    """Full attention with its equal in transformers, a model of constant state, and one that was left out at 4,096."""
    frame = pd.DataFrame(
        [
            inference_row(*model, mode, tokens, batch)
            for batch in (1, 8)
            for tokens in (256, 1024, 4096)
            for mode in ("prefill", "decode")
            for model in (("transformer", ""), ("transformer", "transformers"), ("kda_pure", ""), ("nsa", ""))
        ]
    )
    path = tmp_path / "inference.csv"
    frame.to_csv(path, index=False)
    return path


def inference_row(model: str, peer: str, mode: str, tokens: int, batch: int) -> dict[str, Any]:
    """A row of suite=inference; a step of attention takes 2 ms and 1 ms more every 1,024 tokens."""
    row = {"model": model, "color": {"transformer": "#4D4D4D", "nsa": "#332288"}.get(model, "#009E73")}
    row |= {"backend": peer or "auto", "peer": "Llama" if model == "transformer" else "transformer"}
    row["peer"] = "" if tokens == 4096 and not peer else row["peer"]  # left out of the turns
    row |= {"mode": mode, "tokens": tokens, "batch": batch, "repeats": 5, "d_model": 64, "depth": 4}
    row |= {"device": "cpu", "machine": "Some CPU, 1 thread(s)", "precision": "float32", "note": ""}
    if model == "nsa" and tokens == 4096:
        return {**row, "note": "left out: it would take about 9 s"}
    time = 3.0 if model == "kda_pure" else 2 + tokens / 1024 + 0.5 * bool(peer)
    time *= tokens / 16 if mode == "prefill" else 1
    row |= {f"milliseconds_{key}": f * time for key, f in (("median", 1), ("low", 0.9), ("high", 1.2))}
    row["tokens_per_second"] = 1e3 * batch * (tokens if mode == "prefill" else 1) / time
    row["state_bytes"] = batch * (4096 if model == "kda_pure" else 2048 * tokens)
    row["ratio_transformer"] = "" if model == "transformer" else (2 + tokens / 1024) / time
    return row


@pytest.fixture(scope="session")
def probed(tmp_path_factory, write_run) -> Results:
    """Three of the eleven models with two seeds: attention; attention with gates and selection; neither."""
    folder = tmp_path_factory.mktemp("attention") / "small"
    for seed in (0, 1):
        for name in ("transformer", "orthgsa", "mesanet"):
            pattern, color = MODELS[name]
            run = write_run(folder, name, seed, model={"preset": name, "pattern": pattern, "color": color})
            write_probes(run, name, pattern, seed)
    return load_results(folder)

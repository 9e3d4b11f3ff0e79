"""Every cell of the report's two tables says what its heading says: the frame's numbers are all different here."""

import math

import pytest

from analysis import load_results
from analysis.comparing.tables import compare
from analysis.report.columns import COMPARISON, RUNS, rows, sort_key


@pytest.fixture
def frames(tmp_path, write_run):
    """Tables of one model whose numbers nobody can take for each other."""
    for seed, shift in ((0, 0.0), (1, 0.2)):
        write_run(
            tmp_path / "exp",
            seed=seed,
            loss=3.0 + shift,
            validation_loss=2.5 + shift,
            best_step=200,
            mfu=0.345,
            peak_memory_bytes=(300 - 100 * seed) * 2**20,  # a model's is the highest of its seeds'
            seconds=245.0,
            parameters=470_000,
        )
    runs = load_results(tmp_path / "exp").runs
    return compare(runs), runs


def shown(fields, frame) -> dict[str, str]:
    """The first row's cells by heading."""
    return {field.heading: field.show(rows(frame)[0]) for field in fields}


@pytest.mark.slow
def test_one_row_a_model(frames):
    table, _ = frames
    said = shown(COMPARISON, table)
    half_width = 12.7062047 * 0.2 / math.sqrt(2) / math.sqrt(2)
    bits = 60_000 / 250_000 / math.log(2)
    assert said == {
        "name": "transformer",
        "rank": "–",
        "difference": "–",
        "p": "–",
        "pattern": "FFFF",
        "params": "470k",
        "beside embedding": "200k",
        "matched": "–",
        "FLOPs/token": "1.40M",
        "test loss": f"3.1 ± {half_width:.1f}",
        "ppl": f"{(math.exp(3.0) + math.exp(3.2)) / 2:.2f}",
        "word ppl": f"{(math.exp(3.0 * 1.5) + math.exp(3.2 * 1.5)) / 2:.2f}",
        "bits per byte": f"{3.1 * bits:.2f} ± {half_width * bits:.2f}",
        "best step": "200",
        "learning rate": "0.003",
        "tokens/s": "7.40k",
        "MFU": "34.5 %",
        "peak memory": "300 MiB",
        "seeds": "0, 1",
    }


@pytest.mark.slow
def test_columns_are_sorted_by_the_numbers_that_they_show(frames):
    table, runs = frames
    sorts = {
        "params": 470_000, "FLOPs/token": 1.4e6, "test loss": 3.1, "best step": 200, "tokens/s": 7402.4, "MFU": 0.345,
    }  # fmt: skip
    found = {field.heading: sort_key(field, rows(table)[0]) for field in COMPARISON if field.heading in sorts}
    assert {heading: float(key) for heading, key in found.items()} == pytest.approx(sorts)
    sorts = {
        "seed": 0,
        "validation loss": 2.5,
        "test loss": 3.0,
        "test ppl": math.exp(3.0),
        "steps": 300,
        "time": 245,
    }
    found = {field.heading: sort_key(field, rows(runs)[0]) for field in RUNS if field.heading in sorts}
    assert {heading: float(key) for heading, key in found.items()} == pytest.approx(sorts)

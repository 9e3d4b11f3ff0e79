"""Run folders of every state, sound, unfinished, damaged and foreign: rows, tables, problems and advice."""

import json
from pathlib import Path

import pandas as pd
from support import recorded
from support.said import known

from analysis import load_results
from analysis.comparing.tables import comparison_text
from analysis.loading.probes import SUMMARY, best_rates, probe_measures, probed_steps, select_axis, steps_text
from analysis.loading.results import TABLES, Results, advice, interrupted, records
from analysis.loading.tables import SPLIT_TABLES, caveats, read_selection

RECORDED = Path(__file__).with_name("recorded")


def measure(value: float, **at) -> dict:
    row = {
        "step": 300,
        "layer": 0,
        "part": "mixer",
        "block": "attention",
        "head": 0,
        "axis": "",
        "start": None,
        "end": None,
    }
    return {**row, "measure": "loss", "value": value, "count": 10, "split": "test", **at}


def sound(folder: Path, write_run) -> None:
    """Four runs of two models, with probes, scores by document and a record of the selection."""
    for name, rates in (("transformer", (1e-3, 3e-3)), ("kda", (3e-3,))):
        for seed, rate in enumerate((*rates, rates[-1])):
            run = write_run(
                folder,
                name,
                seed,
                3 - rate,
                recipe={"lr": rate},
                mfu=0.4 if seed else 1.7,
                run=f"{name}{seed}",
                option=name + str(seed),
            )
            rows = [
                measure(2.0 + seed, axis="position", start=at, end=2 * at, layer=None) for at in (1.0, 2.0)
            ]
            rows += [measure(0.5 + seed, measure="sink", head=head, step=100 + 200 * seed) for head in (0, 1)]
            if name == "kda" and seed == 1:
                continue
            (run / "probes").mkdir()
            pd.DataFrame(rows).to_parquet(run / "probes" / "measures.parquet")
            if name == "transformer":
                (run / "probes" / "probes.json").write_text(json.dumps({"settings": {"windows": seed}}))
            text = "split,document,tokens,nats\ntest,0,59000,150.5\ntest,1,1000,30.25\n"
            (run / "documents.csv").write_text(text if seed else text + "test,2,5,1\n")
    lines = [
        "model,color,lr,settings,seed,run,validation_loss,status,chosen,edge,confirmed_by,seconds",
        "transformer,#1,0.001,a=1,1,r1,3.0,done,True,lowest,transformer0 transformer1,4.5",
        "transformer,#1,0.003,a=1,1,r2,nan,diverged,False,,,x",
        "kda,#2,0.003,,1,r3,2.9,done,true,,kda0,",
    ]
    (folder / "selection.csv").write_text("\n".join(lines) + "\n")


def told(results: Results, hidden: str) -> list[str]:
    kept = [name for name in results.runs if name not in ("folder", "setting", "sweep")]
    lines = list(recorded.flat(known(results.runs[kept].T), "runs"))
    lines += recorded.flat(known(results.unfinished), "unfinished")
    for name in (*TABLES, *SPLIT_TABLES):
        lines += recorded.flat(known(results.table(name)), name) if len(results.table(name)) else []
    splits = results.metrics.groupby(["run", "split"])[["loss", "step", "tokens", "mfu"]].agg(
        ["count", "sum"]
    )
    lines += recorded.flat(splits.reset_index(), "metrics")
    lines += [
        f"problem: {text.partition(' (Could not open')[0]}" for text in results.problems
    ]  # pyarrow's words
    lines += recorded.flat(known(results.selection), "selection")
    return [line.replace(hidden, "PLACE") for line in lines]


def test_sound_runs(tmp_path, write_run):
    folder = tmp_path / "results" / "sound"
    sound(folder, write_run)
    results = load_results(folder)
    lines = told(results, str(tmp_path))
    rows = probe_measures(results, ("loss", "sink"))
    lines += [
        *recorded.flat(known(select_axis(rows, SUMMARY)), "summary"),
        *recorded.flat(known(select_axis(rows, "position")), "position"),
    ]
    lines += [
        *recorded.flat(probed_steps(results), "steps"),
        steps_text(probed_steps(results)),
        steps_text(probed_steps(results, ["kda0"])),
    ]
    best = best_rates(results)
    lines += recorded.flat(
        known(best[["model", "lr", "seed", "rates", "edge", "selected_among", "selected_at_edge"]]), "best"
    )
    lines += [
        *map(str, records(results)),
        *interrupted(results),
        *caveats(read_selection(folder)),
        comparison_text(results),
    ]
    lines.append(advice(results))
    results.to_parquet(tmp_path / "exported")
    again = load_results(tmp_path / "exported")
    assert (
        told(again, str(tmp_path))[: len(results.runs.columns)]
        == told(results, str(tmp_path))[: len(results.runs.columns)]
    )
    both = load_results([tmp_path / "exported", folder])
    lines += [advice(again), advice(both)]
    lines += [f"{len(both.runs)} runs, {len(both.exported)} of them exported", *both.problems]
    lines += recorded.flat(known(results.columns("measures")), "columns")
    recorded.check(RECORDED / "sound.txt", [line.replace(str(tmp_path), "PLACE") for line in lines])

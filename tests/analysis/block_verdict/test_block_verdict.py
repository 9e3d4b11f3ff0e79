"""The page of job=verdict: every sentence from a number, on the side its interval says; no stranger's text as code."""

import json
from pathlib import Path

import pandas as pd
import pytest
from support.probe_tables import measure, write_table
from support.task_runs import write_study

from analysis import ResultsError, load_results
from analysis.verdict_page.findings import READINGS
from analysis.verdict_page.page import publish_verdict, write_verdict

MODEL = {"residual": {"name": "add"}, "channel": {"name": "swiglu"}}
RECORD = {
    "block": {"kind": "mixer", "name": "kda", "title": "Kimi <b>delta</b> attention", "source": "a paper"},
    "relative": "mesanet",
    "models": {
        name: {"pattern": letter, **MODEL}
        for name, letter in (("transformer", "F"), ("kda", "K"), ("mesanet", "M"))
    },
}
CONTRACTS = [("the future changes nothing", 4, 0, 0, "", ""), ("saved", 2, 0, 0, "", "")]
BROKEN = [CONTRACTS[0], ("saved", 2, 1, 0, "mixer-kda", "AssertionError: <script>")]
SIZES = [
    ("transformer", 256, 1000, 2e6, 4096),
    ("kda", 256, 1001, 1e6, 4100),
    ("mesanet", 256, 1000, 1e6, 1024),
]
SPEEDS = [("kda", "transformer", "prefill", 1.4, 1.2, 1.5), ("kda", "transformer", "decode", 0.9, 0.8, 1.1)]


def write(folder: Path, contracts=CONTRACTS, sizes=SIZES, speeds=SPEEDS) -> Path:
    place = folder / "verdict"
    place.mkdir(parents=True)
    (place / "verdict.json").write_text(json.dumps(RECORD))
    columns = ["contract", "cases", "failed", "skipped", "case", "reason"]
    pd.DataFrame(contracts, columns=columns).to_csv(place / "contracts.csv", index=False)
    if sizes:
        columns = ["model", "tokens", "parameters_non_embedding", "flops_forward", "state_bytes"]
        pd.DataFrame(sizes, columns=columns).to_csv(place / "sizes.csv", index=False)
    if speeds:
        columns = ["model", "peer", "mode", "ratio", "ratio_low", "ratio_high"]
        more = {"tokens": 256, "milliseconds_median": 2.0, "machine": "a processor", "device": "cpu"}
        pd.DataFrame(speeds, columns=columns).assign(**more).to_csv(place / "speeds.csv", index=False)
    return folder


def sections(page: Path) -> dict[str, list[str]]:
    """The sentences of verdict.md by "peer: heading"."""
    found, peer, group = {}, "", ""
    for line in page.with_name("verdict.md").read_text().splitlines():
        if line.startswith("## "):
            peer, group = line.removeprefix("## "), ""
        elif line.endswith(":"):
            group = f": {line[:-1]}"
        elif line.startswith("- "):
            found.setdefault(peer + group, []).append(line[2:])
    return found


def test_what_was_counted_and_timed_stands_on_the_side_that_its_interval_says(tmp_path):
    found = sections(write_verdict(write(tmp_path), None))
    assert found["Beside transformer: Better"] == [
        "FLOPs of a token's forward pass at 256 tokens: 0.5 times transformer's, counted.",
        "Prefill at 256 tokens: faster, 1.40 times transformer's speed (95 % interval 1.20 to 1.50).",
    ]
    assert found["Beside transformer: Equal, or not shown to differ"] == [
        "Decode state at 256 tokens: equal within 1%, counted.",
        "Decode at 256 tokens: not shown to differ in speed, 0.90 times transformer's speed (95 % interval 0.80 to "
        "1.10).",
    ]
    assert found["Beside mesanet: Worse"] == ["Decode state at 256 tokens: 4 times mesanet's, counted."]
    assert "Speed on a GPU: unmeasured." in found["What this cannot tell"]


RATES = (1e-3, 3e-3, 1e-2)


@pytest.mark.parametrize(
    ("gap", "rates", "heading", "verb"),
    [
        (-0.5, RATES, "Better", "better than"),
        (0.5, RATES, "Worse", "worse than"),
        (0.0, RATES, "Equal, or not shown to differ", "not shown to differ from"),
        (-0.5, RATES[1:2], "Leads, not verdicts", "ahead of"),
        (0.5, RATES[1:2], "Leads, not verdicts", "behind"),
    ],
)
def test_losses_are_compared_with_the_transformer_and_with_the_relative(
    tmp_path, write_run, gap, rates, heading, verb
):
    folder = write(tmp_path / "exp", sizes=(), speeds=())
    for name, letter, loss in (("transformer", "F", 3.0), ("kda", "K", 3 + gap), ("mesanet", "M", 3 + gap)):
        model = {"preset": name if letter == "F" else None, "pattern": letter * 4}
        for rate in rates:
            for seed in range(3):
                at_rate = loss + 0.01 * seed + 0.3 * (rate != 3e-3)
                write_run(folder, name, seed, at_rate, model=model, option=name, recipe={"lr": rate})
    found = sections(write_verdict(folder, load_results(folder)))
    (said,) = found[f"Beside transformer: {heading}"]
    assert said.startswith(f"Test loss on pydocs: {f'{gap:+.3f}'.replace('-', '−')} ± 0.0")
    assert f"95 % interval: {verb} transformer" in said
    (same,) = found["Beside mesanet: Equal, or not shown to differ"]
    assert "not shown to differ" in same
    assert any(line.startswith("Longer contexts: trained with") for line in found["What this cannot tell"])


def test_of_a_relative_that_was_not_trained_no_loss_is_told(tmp_path, write_run):
    folder = write(tmp_path / "exp", sizes=(), speeds=())
    for name, letter in (("transformer", "F"), ("kda", "K")):
        model = {"preset": name if letter == "F" else None, "pattern": letter * 4}
        for seed in range(3):
            write_run(folder, name, seed, 3 + 0.01 * seed, model=model, option=name)
    found = sections(write_verdict(folder, load_results(folder)))
    told = {where for where, lines in found.items() for line in lines if line.startswith("Test loss")}
    assert told == {"Beside transformer: Equal, or not shown to differ"}


def probed(folder: Path, rows: dict[str, list[tuple[str, str, float | None, float]]]) -> None:
    """Give runs measures of three layers: model -> (measure, axis, end, value of seed 0, half of seed 1's)."""
    for run in (path.parent for path in folder.glob("*/summary.json")):
        summary = json.loads((run / "summary.json").read_text())
        name = {"F": "transformer", "K": "kda", "M": "mesanet"}[summary["model"]["pattern"][0]]
        times = 1 + summary["seed"]
        found = [
            measure(what, value * times, axis=axis, end=end, layer=layer)
            for what, axis, end, value in rows.get(name, [])
            for layer in range(3)
        ]
        write_table(run, "measures", found)


def test_what_probes_saw_is_told_of_every_model_that_has_it(tmp_path, write_run):
    """The median over layers of the rows that a sentence names, and an interval over seeds of 1, 2 and 3 times it."""
    folder = write(tmp_path / "exp", sizes=(), speeds=())
    for name, letter in (("transformer", "F"), ("kda", "K"), ("mesanet", "M")):
        for seed in range(3):
            model = {"preset": name if letter == "F" else None, "pattern": letter * 4}
            write_run(folder, name, seed, 3 + 0.01 * seed, model=model, option=name, recipe={"lr": 3e-3})
    rows = {
        "transformer": [
            ("loss", "position", 16, 4.0),
            ("loss", "position", 64, 3.5),
            ("first_token_mass", "", None, 0.1),
        ],
        "kda": [("state_rank", "position", 16, 9.0), ("state_rank", "position", 32, 2.0)],
        "mesanet": [("decay_half_life", "quantile", 0.25, 1.0), ("decay_half_life", "quantile", 0.5, 8.0)],
    }
    probed(folder, rows)
    found = sections(write_verdict(folder, load_results(folder)))["What the probes see"]
    assert found == [
        "Loss at a window's first tokens minus loss at its last: the gain from context (nats/token), on pydocs: "
        "transformer 1 ± 1.2.",
        "Attention on the first token (of all), on pydocs: transformer 0.2 ± 0.25.",
        "Half-life of what a state holds (tokens), on pydocs: mesanet 16 ± 20.",
        "Effective rank of the state at a window's end, on pydocs: kda 4 ± 5.",
    ]
    probed(folder, rows | {"kda": [("stream_rms", "", None, 1.0)]})
    found = sections(write_verdict(folder, load_results(folder)))["What the probes see"]
    assert found[-1].startswith("kda records none of these itself")


@pytest.mark.slow
def test_tasks_are_told_one_by_one_in_accuracy(tmp_path, write_run):
    folder = write_study(write_run, write(tmp_path / "exp", sizes=(), speeds=()))
    found = sections(write_verdict(folder, load_results(folder)))
    (ahead,) = found["Beside transformer: Leads, not verdicts"]
    assert ahead.startswith("Accuracy on parity")
    assert (
        ": kda 0.990 ± 0.020, transformer 0.600 ± 0.020, chance 0.500, memory 0.550; difference +0.39"
        in ahead
    )
    assert "learned" not in ahead
    (equal,) = found["Beside transformer: Equal, or not shown to differ"]
    assert equal.startswith("Accuracy on mqar")
    assert "not shown to differ from transformer; both learned it" in equal
    assert [said.split(":")[0] for said in found["Beside mesanet: Leads, not verdicts"]] == [
        "Accuracy on mqar",
        "Accuracy on parity",
    ]


def test_a_block_that_breaks_a_contract_is_condemned_on_the_first_screen(tmp_path):
    page = write_verdict(write(tmp_path, BROKEN, sizes=(), speeds=()), None)
    text = page.read_text()
    assert "kda fails: it breaks 1 of 2 contracts" in text
    assert "Broken: saved (1 of 2 cases; mixer-kda: AssertionError: &lt;script&gt;)" in text
    assert "<script>" not in text
    assert "<b>delta" not in text


@pytest.mark.slow
def test_a_published_verdict_says_the_same_and_leads_to_no_folder_of_this_machine(tmp_path, write_run):
    study, published = write_study(write_run, tmp_path / "exp"), tmp_path / "published" / "exp"
    contracts = [CONTRACTS[0], ("saved", 2, 1, 0, "mixer-kda", f"OSError: {tmp_path}/secret/kda.pt")]
    page = write_verdict(write(study, contracts), load_results(study))
    published.mkdir(parents=True)
    copied = publish_verdict(study, load_results(study), published)
    assert copied == published / "verdict" / "index.html"
    said = {
        heading: [text.replace(f"{tmp_path}/secret/", "") for text in texts]
        for heading, texts in sections(page).items()
    }
    assert sections(copied) == said
    assert "../report/index.html" in page.read_text()
    assert "../report/index.html" not in copied.read_text()
    assert all(str(tmp_path) not in file.read_text() for file in copied.parent.iterdir())
    again = write_verdict(published, load_results(study))
    assert sections(again) == said


def test_no_verdict_or_a_damaged_one_is_said(tmp_path):
    with pytest.raises(ResultsError, match="has no verdict; make one"):
        write_verdict(tmp_path, None)
    folder = write(tmp_path)
    for name, content in (("sizes.csv", "model\nkda\n"), ("verdict.json", "[]")):
        (folder / "verdict" / name).write_text(content)
        with pytest.raises(ResultsError, match="cannot be read"):
            write_verdict(folder, None)


def test_everything_that_probes_tell_of_the_inside_is_read():
    """Each measure by its name in the tables of probes, in words that begin a sentence."""
    assert [reading.measure for reading in READINGS] == [
        *("loss", "answer_mass", "first_token_mass", "attention_entropy", "selected_mass", "routing_entropy"),
        *("output_gate_mean", "decay_half_life", "state_rank", "memory_rank", "cg_residual", "path_gain"),
        "stream_spread",
    ]
    assert all(reading.words[0].isupper() for reading in READINGS)

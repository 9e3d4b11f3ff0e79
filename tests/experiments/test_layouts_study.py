"""The HyperGraph report's study made small: named layouts trained, probed on the test split, reported in its tables."""

import pandas as pd
import pytest
from support.program import Lab

from analysis import load_results

SENTENCE = "alpha beta gamma"
TRAINING = ["model.pattern=baseline,interlaced_sf,bookend", "model.depth=14", "trainer.max_steps=10"]
PROBE = [
    "probe.routing_split=test",
    "probe.routing_tokens=null",
    f"probe.sentence={SENTENCE}",
    "probe.windows=1",
    "probe.extrapolate=1",
    "probe.long_windows=1",
    "probe.prompts=[]",
]


@pytest.mark.long
def test_variants_are_trained_probed_and_reported_by_their_names(lab: Lab):
    folder = lab.results / "variants"
    patterns = 'model.pattern="(WWWF)*2",F*8,"(KKKF)*2"'
    window = "model.variants.W={mixer: attention, window: 8, sinks: learned}"
    sizes = [
        "model.depth=null",
        "model.d_model=16",
        "model.n_heads=2",
        "trainer.max_steps=5",
        "name=variants",
    ]
    for words in (
        ["--multirun", "model=transformer", patterns, window, *sizes],
        ["job=probe", f"runs={folder}", *PROBE],
        ["job=report", f"runs={folder}"],
    ):
        outcome = lab.here(*words)
        assert outcome.status == 0, outcome.out + outcome.err
    results = load_results(folder)
    own = "W=attention(window=8, sinks=learned)"
    assert set(results.runs["label"]) == {f"WWWFWWWF {own}", "transformer", "KKKFKKKF"}
    measures = results.table("measures")
    windowed = measures[measures["run"].isin(results.runs.loc[results.runs["pattern"] == "WWWFWWWF", "run"])]
    blocks = windowed[windowed["measure"] == "attention_entropy"].groupby("layer")["block"].unique()
    assert [list(x) for x in blocks] == [["W"], ["W"], ["W"], ["attention"]] * 2
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert own in page
    assert (
        "Full attention, window 8, sinks learned"
        in pd.read_csv(folder / "report" / "figures" / "patterns.csv")["title"].unique()
    )


@pytest.mark.long
def test_layouts_are_trained_probed_and_reported_in_the_reports_tables(lab: Lab):
    folder = lab.results / "layouts"
    for words in (
        ["+experiment=layouts", *TRAINING, "evaluate.splits=[validation,test]"],
        ["job=probe", f"runs={folder}", *PROBE],
        ["job=report", f"runs={folder}"],
    ):
        outcome = lab.here(*words)
        assert outcome.status == 0, outcome.out + outcome.err
    results, tables = load_results(folder), folder / "report" / "tables"
    assert sorted(results.runs["pattern"]) == ["FFFFFFFFFFFFFF", "FFFSSSSSSSSFFF", "SFSFSFSFSFSFSS"]
    quality, balance = (pd.read_csv(tables / f"{name}.csv") for name in ("quality", "balance"))
    assert len(quality) == 3
    assert quality[["validation_loss", "test_loss"]].notna().all(axis=None)
    assert sorted(balance["layout"]) == ["bookend", "interlaced_sf"]

    measures = results.table("measures")
    imbalance = measures[measures["measure"] == "imbalance"]
    assert set(imbalance["split"]) == {"test"}
    of_a_run = imbalance.groupby("run")["value"]
    assert list(of_a_run.size()) == [8 * 2] * 2, "one for each head of the eight sparse layers"
    assert sorted(balance["imbalance"]) == pytest.approx(sorted(of_a_run.mean()))

    assert set(results.table("sentence")["given"]) == {SENTENCE}
    routes = pd.concat([results.table("routes"), results.table("alternatives")])
    token = ["run", "layer", "head", "position"]
    of_a_token = routes.groupby(token)
    assert list(routes.groupby("run")["layer"].nunique()) == [8, 8]
    assert (of_a_token["choice"].nunique() == 6).all(), "the first choice, the second and all other timelines"
    ranked = routes.sort_values("rank").groupby(token)["probability"]
    assert ranked.apply(lambda p: p.is_monotonic_decreasing).all()
    for name in ("routing_choices", "routed_sentence", "load_balance"):
        assert (folder / "report" / "figures" / f"{name}.png").exists()

"""The blocks' pages say of the code what the code does; the HyperGraph report's study, made small."""

import math
import re
import shlex
from collections.abc import Callable, Iterator

import pandas as pd
import pytest
import torch
from support.program import Lab
from support.tree_copy import ROOT

import kernels
from analysis import load_results
from analysis.gallery import listed
from experiments.bench.run_suite import SUITES
from experiments.system.paths import CONF
from zoo import Dims, registry
from zoo.channels.moe import MoEConfig
from zoo.mixers import gsa, mesanet, nsa
from zoo.mixers.gsa import GSAConfig
from zoo.mixers.nsa import NSAConfig
from zoo.model import meta_model

PAGE = re.sub(
    r"<!--.*?-->",
    "",
    "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "blocks").glob("*.md"))),
    flags=re.DOTALL,
)
COSTS = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
REFERENCE = Dims(768, 12, seq_len=512, layer=0, depth=14)


def mixer(name: str, dims: Dims = REFERENCE) -> torch.nn.Module:
    """A mixer with its default options, without storage."""
    block = registry.get("mixer", name)
    with torch.device("meta"):
        return block.cls(block.config(), dims)


def sizes_of_mixers() -> tuple[float, float]:
    """The fewest and the most parameters of a mixer, as multiples of 4·D²."""
    counts = [sum(p.numel() for p in mixer(name).parameters()) for name in registry.blocks("mixer")]
    return min(counts) / (4 * 768**2), max(counts) / (4 * 768**2)


def least_of_the_growing_k() -> float:
    """k over k_base where the variance is 0, by the formula that grows with it."""
    rule = kernels.AdaptiveK("seed", base=10_000, least=1, most=100_000)
    return int(rule(torch.zeros(()))) / rule.base


def costs(model: str, column: int) -> float:
    """A number of the table of architectures, which is derived from the models (test_help_and_costs)."""
    (row,) = [line.split("|") for line in COSTS.splitlines() if line.startswith(f"| `{model}` |")]
    return float(row[column].split()[0].replace(",", ""))


def gsa_sizes() -> tuple[int, ...]:
    """k, its least and its most at 128K tokens, as `gsa` has them by default."""
    k = gsa.sizes(GSAConfig(), 131072)
    return k.base, k.least, k.most


def nsa_sizes() -> tuple[int, ...]:
    """l, d, n, w and l' at 4,096 tokens."""
    found = nsa.sizes(NSAConfig(), 4096)
    return tuple(found[key] for key in ("block_size", "stride", "n_select", "window", "select_size"))


def bytes_of_8b() -> tuple[float, ...]:
    """16 bytes a parameter in GB, whole, with 2 of them whole, and an eighth of all."""
    return 16 * 8, 2 * 8 + 14 * 8 / 8, 16 * 8 / 8


NUMBERS: dict[str, Callable[[], object]] = {
    r"A mixer has ([\d.]+) to ([\d.]+) times 4·D² parameters at D = 768": sizes_of_mixers,
    r"`channel.name=moe`: (\d) of (\d) SwiGLU experts": lambda: (MoEConfig().top_k, MoEConfig().n_experts),
    r"γ = σ\(...\)·\(1 − ([\d.]+)·β²\)": lambda: mesanet.FORGETTING,
    r"Λ = ([\d.]+) \+ softplus\(λ\), 1 at the start": lambda: mesanet.LAMBDA_FLOOR,
    r"l, d, n, w are not given. \| (\d+), (\d+), (\d+), (\d+), l' = (\d+) from T": nsa_sizes,
    r"k = (\d+), from (\d+) to (\d+), at 128K tokens": gsa_sizes,
    r"4·⌈D/48⌉: (\d+) at D = 768": lambda: mixer("gsa").indexer.width,
    r"A state for every head, (\d) heads of (\d+) at D = 768": lambda: (
        mixer("mom").heads,
        mixer("mom").width,
    ),
    r"formula never goes below ([\d.]+)·k_base": least_of_the_growing_k,
    r"exp never reaches I; this has ([\d.]+) on the diagonal": lambda: kernels.sinkhorn(4 * torch.eye(4))[
        0, 0
    ],
    r"\(6n\+1\)C against \(2n\+1\)C, (\d+) % at n = 4": lambda: 100 * (1 - (2 * 4 + 1) / (6 * 4 + 1)),
    r"whole reference model takes ([\d,]+) M against ([\d,]+) M FLOPs a token at 128K": lambda: (
        costs("orthgsa", 7),
        costs("transformer", 7),
    ),
    r"the dense model takes (\d+) M FLOPs a token at 8K, `hypergraph` (\d+) M": lambda: (
        costs("transformer", 6),
        costs("hypergraph", 6),
    ),
    r"fourth layer keeps a cache: ([\d.]+) MiB at 128K": lambda: costs("kda", 10),
    r"on eight GPUs (\d+) GB with DDP, (\d+) with ZeRO-2, (\d+) with ZeRO-3": bytes_of_8b,
    r"(\d+) and (\d+) parameters, the report's": lambda: (costs("transformer", 3), costs("hypergraph", 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", NUMBERS)
def test_a_number_that_the_page_says_of_the_code_is_the_codes(pattern):
    """To half a unit of the last digit that is written."""
    (found,) = re.findall(pattern, re.sub(r"(?<=\d),(?=\d{3}\b)", "", PAGE))
    value = NUMBERS[pattern]()
    written = found if isinstance(found, tuple) else (found,)
    for text, number in zip(written, value if isinstance(value, tuple) else (value,), strict=True):
        digits = len(text.partition(".")[2])
        assert abs(float(text) - float(number)) <= 0.5 * 10**-digits * (1 + 1e-6), (text, float(number))


def test_the_mesa_layers_regularisation_starts_at_one():
    with torch.no_grad():
        lamb = registry.get("mixer", "mesanet").cls(mesanet.MesaNetConfig(), Dims(32, 4, 16, 0, 2))._lamb()
    torch.testing.assert_close(lamb, torch.ones_like(lamb))
    assert math.isclose(mesanet.LAMBDA_FLOOR, 0.25)


def test_every_figure_experiment_and_suite_that_the_page_names_exists():
    lists = re.findall(r"[Ff]igures? ((?:`\w+`(?:, )?)+)", PAGE)
    figures = {name for names in lists for name in re.findall(r"\w+", names)}
    assert len(figures) > 10
    assert figures - {entry.name for entry in listed()} == set()
    for kind, known in (
        (r"\+experiment", {path.stem for path in (CONF / "experiment").glob("*.yaml")}),
        ("suite", set(SUITES)),
    ):
        named = set(re.findall(rf"{kind}=(\w+)", PAGE))
        assert named
        assert named - known == set()


def commands() -> Iterator[str]:
    """The commands of the page's code blocks, each in one line."""
    for block in re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


@pytest.mark.slow
def test_the_documents_forms_compose_and_are_models(lab: Lab):
    """Every option of the commands exists, and no two of them contradict each other."""
    lab.arguments = lambda *words: list(words)
    given = [shlex.split(command) for command in commands()]
    assert len(given) == 3
    for program, script, *words in given:
        assert (program, script) == ("python", "run.py")
        (config,) = lab.compose(*words)
        meta_model(config.model, **config.sizes)


SENTENCE = "alpha beta gamma"
TRAINING = ["model.pattern=baseline,interlaced_sf,bookend", "model.depth=14", "trainer.max_steps=10"]
PROBE = ["probe.routing_split=test", "probe.routing_tokens=null", f"probe.sentence={SENTENCE}"]
PROBE += ["probe.windows=1", "probe.extrapolate=1", "probe.long_windows=1", "probe.prompts=[]"]


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
        lab.done(*words)
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

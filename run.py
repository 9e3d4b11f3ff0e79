"""The one entry to Archzoo: `python run.py [job=...] [key=value ...]`; `python run.py --help` says what there is."""

import sys
from pathlib import Path

from experiments.jobs import Job
from experiments.system import signals


def runs_of(config) -> str:
    """The experiment that report and publish are of: what runs= names, or that of name=."""
    return config.runs or f"{config.results}/{config.name}"


def report(config) -> None:
    """Compare the runs of an experiment on one HTML page. Raises UserError where its runs cannot be read."""
    with signals.loading():
        from analysis import ResultsError, comparison_text, load_results, write_report
    from zoo import UserError

    runs = runs_of(config)
    try:
        print(comparison_text(load_results(runs), config.baseline))
        print(f"report: {write_report(runs, workers=config.sweep.workers, baseline=config.baseline)}")
    except ResultsError as error:
        raise UserError(str(error)) from error


def publish(config) -> None:
    """Write a study's tables and figures, with its verdict if any, into RESULTS/published/EXPERIMENT, to commit.

    Raises UserError where the runs cannot be read or a part of what is published is missing.
    """
    from analysis import ResultsError, load_results
    from analysis.publishing import Publication, publish
    from analysis.verdict_page.page import FOLDER, publish_verdict
    from experiments.system import machine
    from zoo import UserError

    runs = runs_of(config)
    try:
        publication = Publication(
            config.question,
            tuple(config.figures),
            config.source,
            tuple(config.leave_out),
            machine.command(),
            *machine.commit(),
            config.baseline,
        )
        results = load_results(runs)
        place = publish(results, f"{config.results}/published", publication)
        if (Path(runs) / FOLDER).is_dir():
            publish_verdict(Path(runs), results, place)
        print(f"published: {place}")
    except ResultsError as error:
        raise UserError(str(error)) from error


def claims(config) -> None:
    """Judge what the source documents claim by measurements made now, published tables and finished runs.

    All claims: their ledger goes to RESULTS/published. Chosen ones (claims=[...]): their numbers are printed, and
    compared with the published ledger unless runs are given. Raises RunFailed for a number outside its published
    interval, UserError for claims that there are not and for tables or runs that cannot be read.
    """
    with signals.loading():
        from analysis import ResultsError, load_results
        from analysis.evidence import ledger
    from experiments.evidence import measure_claims
    from experiments.runs import RunFailed
    from experiments.system.paths import ROOT
    from zoo import UserError

    places = [Path(config.results) / "published", ROOT / "results" / "published"]
    try:
        asked = ledger.chosen(config.claims)
        runs = load_results(config.runs) if config.runs else None
        numbers = measure_claims(
            [claim.number for claim in asked], config.trainer.threads, config.trainer.progress
        )
        evidence = ledger.Evidence(numbers, places, runs)
        entries = [ledger.judge(claim, evidence) for claim in asked]
        print("\n".join(ledger.lines(entries, numbers=bool(config.claims))))
        if not config.claims:
            print("".join(f"ledger: {path}\n" for path in ledger.write(entries, places[0])), end="")
        elif runs is None and (off := ledger.against_published(entries, places)):
            raise RunFailed("; ".join(off))
    except ResultsError as error:
        raise UserError(str(error)) from error


def headlines(config) -> None:
    """Judge the papers' headlines by the published studies, and write their table into RESULTS/published.

    Raises UserError for tables that cannot be read or written.
    """
    with signals.loading():
        from analysis import ResultsError
        from analysis.evidence import headlines
    from experiments.system.paths import ROOT
    from zoo import UserError

    places = [Path(config.results) / "published", ROOT / "results" / "published"]
    try:
        found = headlines.judge_all(places)
        print("\n".join(headlines.lines(found)))
        print("".join(f"headlines: {path}\n" for path in headlines.write(found, places[0])), end="")
    except ResultsError as error:
        raise UserError(str(error)) from error


def judge_papers(config) -> None:
    """Print the verdicts on the papers' headlines, from the runs in RESULTS where there are some."""
    from analysis.evidence import headlines
    from experiments.system.paths import ROOT

    found = headlines.judge_all([Path(config.results), ROOT / "results" / "published"])
    print("\n".join(headlines.lines(found)))


def draw_suite(config) -> None:
    """Draw figures of the table that job=bench wrote, if it has many cases."""
    from experiments.bench.result_table import table_path

    draw(table_path(config))


def draw_stages(config) -> None:
    """Draw figures of the tables that job=gpu wrote."""
    from experiments.gpu.settings import Settings

    for suite in ("kernels", "models"):
        draw(Settings.of(config).published / f"{suite}.csv")


def draw(table) -> None:
    """Draw figures of a table of measurements, beside it."""
    from analysis.figures import inference
    from analysis.plotting.bench import draw_table

    for path in [*draw_table(table), *inference.draw_file(table)]:
        print(f"figure: {path}")


def list_figures(config) -> None:
    """Print the figures of a report below what there is to choose from."""
    from experiments.jobs.list import FIGURES, print_table

    if config.show not in (None, FIGURES):
        return
    with signals.loading():
        from analysis.gallery import listed
    rows = [(entry.name, entry.section, entry.title) for entry in listed()]
    print_table(
        "Figures (job=report draws those for which there are results; job=publish figures=[...])", rows
    )


def write_verdict(config) -> None:
    """Write the report of what a verdict trained, and the verdict's page. Raises UserError where tables are missing."""
    from analysis import ResultsError, load_results, write_report
    from analysis.verdict_page.page import lines, write_verdict
    from experiments.jobs.verdict import named
    from zoo import UserError

    config = named(config)
    folder = Path(config.results) / config.name
    try:
        trained = any(folder.glob("*/summary.json"))
        results = load_results(folder) if trained else None
        if results is not None:
            print(f"report: {write_report(folder, workers=config.sweep.workers, baseline=config.baseline)}")
        page = write_verdict(folder, results)
    except ResultsError as error:
        raise UserError(str(error)) from error
    print("\n".join(lines(page.parent)))
    print(f"verdict: {page}")


# experiments does not import analysis, so what reads result files is handed to the command line here.
JOBS = [
    Job(
        "report",
        "compare the runs of an experiment on one HTML page",
        report,
        reads=("runs",),
        needs="runs=results/NAME",
        place=runs_of,
    ),
    Job(
        "publish",
        "write tables and figures=[...] of an experiment to results/published/NAME, to commit",
        publish,
        reads=("runs",),
        needs='runs=results/NAME question="..."',
        place=runs_of,
    ),
    Job(
        "claims",
        "judge the source documents' claims by measurements and published results",
        claims,
        reads=("runs",),
        place=lambda config: None if config.claims else config.results,
    ),
    Job(
        "headlines",
        "judge the papers' headline results by published studies, and write their table",
        headlines,
        place=lambda config: config.results,
    ),
]
AFTER = {
    "compare": report,
    "papers": judge_papers,
    "list": list_figures,
    "bench": draw_suite,
    "gpu": draw_stages,
    "verdict": write_verdict,
}

if __name__ == "__main__":
    signals.exit_at_once()
    from experiments.cli import main

    sys.exit(main(JOBS, AFTER))

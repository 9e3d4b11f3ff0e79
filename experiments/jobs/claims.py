"""job=claims: what the source documents claim, judged by new measurements, published tables and finished runs."""

from __future__ import annotations

from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job, reading_results
from experiments.system import signals
from experiments.system.paths import PUBLISHED


def run(config: Config) -> None:
    """Judge all claims and write their ledger into RESULTS/published; or print the numbers of those in claims=[...].

    Numbers are compared with the published ledger unless runs are given. Raises RunFailed for a number outside its
    published interval, UserError for claims that there are not and for tables or runs that cannot be read.
    """
    with signals.loading():
        from analysis import load_results
        from analysis.evidence import ledger
        from experiments.evidence import measure_claims
        from experiments.runs import RunFailed

    places = [Path(config.results) / "published", PUBLISHED]
    with reading_results():
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


JOB = Job(
    "claims",
    "judge the source documents' claims by measurements and published results",
    run,
    reads=("runs",),
    place=lambda config: None if config.claims else config.results,
)

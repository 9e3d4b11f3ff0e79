"""job=headlines: the papers' headline results, judged by published studies."""

from __future__ import annotations

from pathlib import Path

from experiments.configuration.schema import Config
from experiments.jobs import Job, reading_results
from experiments.system import signals
from experiments.system.paths import PUBLISHED


def run(config: Config) -> None:
    """Print the verdicts and write their table into RESULTS/published. Raises UserError for damaged tables."""
    with signals.loading():
        from analysis.evidence import headlines

    place = Path(config.results) / "published"
    with reading_results():
        verdicts = headlines.judge_all([place, PUBLISHED])
        print("\n".join(headlines.lines(verdicts)))
        print("".join(f"headlines: {path}\n" for path in headlines.write(verdicts, place)), end="")


JOB = Job(
    "headlines",
    "judge the papers' headline results by published studies, and write their table",
    run,
    place=lambda config: config.results,
)

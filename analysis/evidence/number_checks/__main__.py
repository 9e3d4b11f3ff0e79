"""python -m analysis.evidence.number_checks FILE ...: marked numbers of texts against their tables; 1 if one is off."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from analysis.evidence.number_checks.check import check
from analysis.evidence.number_checks.published_tables import Tables


def main(names: list[str], root: Path) -> int:
    """Check the files, print a line per problem and per file, and return the exit status."""
    tables, wrong = Tables(root), False
    for name in names:
        outcome = check(Path(name), tables)
        for line in outcome.problems:
            print(line, file=sys.stderr)
        for line in outcome.unseen:
            print(f"not checked: {line}")
        said = f"{outcome.numbers} numbers and {outcome.statements} statements compared with their tables"
        print(f"{name}: {said}, {len(outcome.problems)} wrong")
        wrong = wrong or bool(outcome.problems)
    return int(wrong)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` has read enough
    sys.exit(main(sys.argv[1:], Path.cwd()))

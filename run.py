"""The one entry to Archzoo: `python run.py [job=...] [key=value ...]`; `python run.py --help` says what there is."""

import sys

from experiments.system import signals

if __name__ == "__main__":
    signals.exit_at_once()
    from experiments.front_desk import main

    sys.exit(main())

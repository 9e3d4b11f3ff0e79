"""Load the results of runs, draw figures and write reports; reads only the files that runs wrote.

    from analysis import load_results, write_report
    results = load_results("results/quickstart")     # results.runs, results.metrics: pandas frames
    write_report("results/quickstart")               # results/quickstart/report/index.html

loading/                     result files as data frames, checked
comparing/                   tables of models, who differs from the baseline, on what terms
statistics.py, caveats.py    deviations, intervals, ranks; what a reviewer would object to
gallery.py, figures/         which figures there are, a file a family (figure_entry.py: what one registers)
plotting/, files.py          axes, legends, styles; files, errors and formats of numbers
report/, templates/          the report;  verdict_page/: the page of job=verdict;  publishing.py: published studies
evidence/                    checks of documents, papers and our own pages;  notebooks/: four to begin with

Names are imported when first used, so that ``import analysis`` costs neither pandas nor matplotlib.
"""

import logging
from importlib import import_module

# Where matplotlib cannot keep its list of fonts it says so beside our one line, and makes the list again next time.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

_HOME = {
    "Results": "analysis.loading.results",
    "ResultsError": "analysis.files",
    "across_machines": "analysis.caveats",
    "comparison_text": "analysis.comparing.tables",
    "load_results": "analysis.loading.results",
    "write_report": "analysis.report",
}

__all__ = ["Results", "ResultsError", "across_machines", "comparison_text", "load_results", "write_report"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

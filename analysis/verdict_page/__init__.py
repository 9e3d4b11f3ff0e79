"""The page of job=verdict: what an hour can tell of one block.

verdict_tables.py   the tables of results/NAME/verdict;  loss_findings.py: losses of the runs beside it
findings.py         sentences: better, worse, equal;  probe_findings.py: what probes found inside the models
limitations.py      what an hour cannot tell;  verdict_page.py: HTML and Markdown
"""

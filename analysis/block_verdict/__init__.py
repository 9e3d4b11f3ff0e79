"""The page of job=verdict: what an hour can tell of one block.

measured.py   the tables of results/NAME/verdict;  learned.py: what the runs beside it say
findings.py   sentences: better, worse, equal;  untold.py: what an hour cannot tell;  page.py: HTML and Markdown
"""

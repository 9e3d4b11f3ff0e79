"""The page of job=verdict: what an hour can tell of one block.

findings.py  sentences: where the block is better, worse or equal, from its sizes, speeds, losses and probes
page.py      HTML and Markdown, and what an hour cannot tell
"""

"""Probes of a run: what its model does inside, on held-out text or a task, as tables in its folder probes/.

probe_run.py  which runs are probed, how a run is probed, and the columns of the tables
held_out.py   the windows, prompts and the sentence that every model reads, and rows over them
per_token.py  attention maps and routes of a sentence, choices of routers over a text, attention on a task
"""

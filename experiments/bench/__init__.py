"""Benchmarks: always against a peer in the same process, in turns, as medians with their spread.

run_suite.py       runs a suite and writes its table
suites/            one file a suite
timing.py          times of alternatives in turns; lengths within a time budget; forward and backward passes
cases.py           the calls of kernels that are timed;  peers/: other libraries' functions for the same
model_steps.py     training steps, decode states and inputs that are timed
hugging_face.py    models of transformers with the weights of ours
memory_traffic.py  bytes that operators move and save, and the roofline
compiled.py        machine code for a GPU that is not there
result_table.py    the table of results
"""

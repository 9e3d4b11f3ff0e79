"""The stages of job=gpu.

stages.py         training the reference models, tuning kernels, publishing curves and scores
compile_stage.py  every case and every model compiled, each in a process of its own
short_stage.py    pieces of work by priority for a machine that is at hand for minutes;  short.toml: its plan
settings.py       configurations of the stages: reference models by the reference recipe, or a small rehearsal
"""

"""Scores of held-out text and of synthetic tasks, of a run in training or a finished one."""

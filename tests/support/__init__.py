"""Shared by tests: inputs, comparisons, runs of the program; importable because tests/conftest.py is loaded first."""

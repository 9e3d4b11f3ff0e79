"""Errors of analysis."""


class ResultsError(ValueError):
    """Raised for a results folder that cannot be used; the message says what is wrong and what to do."""


class NoData(Exception):
    """Raised where results lack the data that a figure draws; the message gives the reason and replaces the figure."""

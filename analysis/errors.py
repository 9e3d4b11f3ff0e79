"""What analysis raises when a person has to do something."""


class ResultsError(ValueError):
    """One readable message that says what is wrong with a results folder and what to do."""


class NoData(Exception):
    """A figure has nothing to show; the message says why and stands in the figure's place."""

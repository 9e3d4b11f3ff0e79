"""The stages of job=gpu."""

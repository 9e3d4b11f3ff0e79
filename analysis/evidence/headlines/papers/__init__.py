"""The papers' headlines, a file a kind of task: each defines ``HEADLINES``, and nothing lists the files."""

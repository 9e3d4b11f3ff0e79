"""Sphinx builds the site: `make docs`. Pages of docs/reference/ are written from the code before it reads any."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import reference  # noqa: E402  (stands beside this file)

project = "Archzoo"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "tasklist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # commands with Hydra's own quoting are no shell grammar
html_theme = "furo"
html_title = "Archzoo"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["small.css"]


def setup(app) -> None:
    """Write the reference pages before anything is built."""
    app.connect("builder-inited", lambda _: reference.write())

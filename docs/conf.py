"""Sphinx builds the documentation site from the pages of this folder: `make docs`."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from command_line import write_page  # (docs/ is on the path only from here)

import gradmix

write_page(Path(__file__).parent / "reference" / "command-line.md")

project = "gradmix"
author = "The gradmix contributors"
version = release = gradmix.__version__
html_title = f"gradmix {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
myst_heading_anchors = 4

# Tutorials are executed when they or the version change; an error stops the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 1800  # seconds per cell; the longest takes a minute on an idle core
nb_merge_streams = True
nb_render_markdown_format = "myst"  # with tables

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["keyboard.css"]
html_show_sourcelink = False


def _as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn the code spans of Markdown docstrings into literals, and keep |B1| as it is."""
    for number, line in enumerate(lines):
        code = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        lines[number] = re.sub(r"\|(\w+)\|", r"\\|\1\\|", code)


def setup(app: Any) -> None:
    """Connect the docstrings, which are written in Markdown, to autodoc."""
    app.connect("autodoc-process-docstring", _as_rst, priority=400)

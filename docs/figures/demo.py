"""The picture in the README: what `gradmix demo` prints about the digits."""

import io
import re
from importlib import import_module
from pathlib import Path

from rich.console import Console

import gradmix

WIDTH = 108  # columns; the longest line of the settings has 105


def draw(results: Path, path: Path) -> None:
    """Draw the comparison of the demo; runs that the folder of results lacks are computed."""
    demo, terminal = import_module("gradmix.cli.demo"), import_module("gradmix.cli.terminal")
    store = gradmix.ResultStore(results)
    configs = demo.demo_configs()
    gradmix.run_sweep(configs, store)
    console = Console(file=io.StringIO(), record=True, width=WIDTH, highlight=False)
    demo.output = terminal.output = console
    demo.show_settings()
    demo.show_comparison([store.find(config) for config in configs])
    picture = console.export_svg(title="gradmix demo", unique_id="demo")
    # The fonts of the picture come from the web. Without them, readers see a local monospace font.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture, encoding="utf-8")

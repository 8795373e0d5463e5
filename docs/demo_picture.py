"""Draw docs/demo.svg, the picture in the README: the digits of `gradmix demo`."""

import re
from importlib import import_module
from pathlib import Path

from rich.console import Console

WIDTH = 108  # columns; the longest line of the demo has 105

console = Console(record=True, width=WIDTH, highlight=False)
demo, terminal = import_module("gradmix.cli.demo"), import_module("gradmix.cli.terminal")
demo.output = terminal.output = console
demo.compare_mixes()
picture = console.export_svg(title="gradmix demo")
# The fonts of the picture come from the web. Without them, readers see a local monospace font.
picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
Path(__file__).with_name("demo.svg").write_text(picture, encoding="utf-8")

"""Draw docs/demo.svg, the picture in the README: what `gradmix demo` prints, as it prints it."""

import re
from importlib import import_module
from pathlib import Path

from rich.console import Console

command = import_module("gradmix.cli.demo")
command.output = Console(record=True, width=88, highlight=False)
command.demo()
svg = command.output.export_svg(title="gradmix demo")
svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing is fetched to show it
Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")

"""The reference of the command line, written from the commands themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from gradmix.cli.commands import app

INTRODUCTION = """# Command line

This page is generated from the commands. `gradmix COMMAND --help` prints the same. Results go to
standard output, and progress and errors to standard error. The exit code is 0 for success, 2 for
invalid input, 1 for an error of the operating system and 130 for Ctrl-C.
"""


def write_page(path: Path) -> None:
    """Write the page, unless it is there already with the same content."""
    text = "\n".join(_page())
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _page() -> Iterator[str]:
    yield INTRODUCTION
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        yield f"## `gradmix {name}`\n"
        yield f"{_plain(command.help)}\n"
        yield from _parameters(command.params)


def _parameters(params: list[Any]) -> Iterator[str]:
    shown = [param for param in params if not getattr(param, "hidden", False)]
    if not shown:
        return
    yield "| option | meaning |"
    yield "|---|---|"
    for param in shown:
        yield f"| {_names(param)} | {_plain(getattr(param, 'help', None))} |"
    yield ""


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _plain(text: str | None) -> str:
    """Return help as one paragraph per paragraph, without characters that tables use."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return "\n\n".join(paragraphs).replace("|", "\\|")

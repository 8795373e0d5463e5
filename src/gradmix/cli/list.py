"""gradmix list: what there is."""

from __future__ import annotations

from rich.table import Table

from gradmix.cli.terminal import output


def list_all() -> None:
    """What there is: data sets, methods, mixes, networks and analyses, each with its source."""
    from gradmix.data import DATASETS
    from gradmix.diagnostics import ANALYSES
    from gradmix.methods import METHODS
    from gradmix.mixing import ABOUT
    from gradmix.mixing.recipe import BLENDS, LABELS, PARTNERS
    from gradmix.models import MODELS

    kinds: dict[str, dict[str, tuple[str, str]]] = {
        "data sets": {name: (info.summary, info.source) for name, info in DATASETS.items()},
        "methods": {name: (info.summary, info.source) for name, info in METHODS.items()},
        "mixes": ABOUT,
        "models": {name: (info.summary, info.source) for name, info in MODELS.items()},
        "analyses": {name: (info.summary, info.source) for name, info in ANALYSES.items()},
    }
    for kind, entries in kinds.items():
        table = Table("name", "what", "source", title=kind, title_justify="left", box=None)
        for name, (summary, source) in entries.items():
            table.add_row(name, summary, source)
        output.print(table)
        output.print()
    output.print("data of your own: folder:PATH or folder:PATH@SIZE, with a folder for each class")
    output.print("any mix of your own: partners:blend:labels, like gradient:cutmix:remix, of")
    for axis, names in (("partners", PARTNERS), ("blend", BLENDS), ("labels", LABELS)):
        output.print(f"  {axis}: {', '.join(names)}", soft_wrap=True)

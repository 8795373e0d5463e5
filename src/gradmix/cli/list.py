"""gradmix list: show every data set, method, mix, network and analysis."""

from __future__ import annotations

from rich.table import Table

from gradmix.cli.settings import Imports
from gradmix.cli.terminal import output


def list_all(imports: Imports = None) -> None:
    """Show all data sets, methods, mixes, networks, metrics and analyses, each with its source."""
    from gradmix.data import DATASETS
    from gradmix.diagnostics import ANALYSES
    from gradmix.methods import METHODS
    from gradmix.mixing import ABOUT
    from gradmix.mixing.recipe import BLENDS, LABELS, PARTNERS
    from gradmix.models import MODELS
    from gradmix.models.pretrained import PRETRAINED
    from gradmix.plugins import import_plugins, load_entry_points
    from gradmix.training.metrics import METRICS

    load_entry_points()
    import_plugins(imports or [])
    kinds: dict[str, dict[str, tuple[str, str]]] = {
        "data sets": {name: (info.summary, info.source) for name, info in DATASETS.items()},
        "methods": {name: (info.summary, info.source) for name, info in METHODS.items()},
        "mixes": ABOUT,
        "networks": {name: (info.summary, info.source) for name, info in MODELS.items()},
        "pretrained backbones, networks for photos": {
            name: (info.summary, f"extra gradmix[{info.package.extra}]")
            for name, info in PRETRAINED.items()
        },
        "analyses": {name: (info.summary, info.source) for name, info in ANALYSES.items()},
    }
    for kind, entries in kinds.items():
        table = Table("name", "summary", "source", title=kind, title_justify="left", box=None)
        for name, (summary, source) in entries.items():
            table.add_row(name, summary, source)
        output.print(table)
        output.print()
    output.print(f"metrics: {', '.join(METRICS)}", soft_wrap=True)
    output.print("your own data: folder:PATH or folder:PATH@SIZE, with one folder per class")
    output.print("your own mix: partners:blend:labels, such as gradient:cutmix:remix, with")
    for axis, names in (("partners", PARTNERS), ("blend", BLENDS), ("labels", LABELS)):
        output.print(f"  {axis}: {', '.join(names)}", soft_wrap=True)

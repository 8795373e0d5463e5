"""Classifiers on the Hugging Face Hub: upload, download and the model card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from gradmix.classifier.report import Report, facts, plural
from gradmix.errors import FileError, InputError, MissingPackageError

if TYPE_CHECKING:
    from gradmix.classifier.classifier import IncrementalClassifier
    from gradmix.classifier.state import Learned

FILE, CARD = "classifier.gradmix", "README.md"
SHOWN = 200  # classes and calls in the tables of a card
MARKUP = str.maketrans({character: f"&#{ord(character)};" for character in "\\`*_[]|#~"})


class Place(NamedTuple):
    """A repository of the Hub."""

    repo_id: str
    revision: str | None = None  # a branch, a tag or a commit
    token: str | None = None


def push(
    classifier: IncrementalClassifier,
    place: Place,
    include_exemplars: bool = False,
    private: bool | None = None,
    licence: str | None = None,
) -> str:
    """Upload a classifier and its card; see `IncrementalClassifier.push_to_hub`."""
    hub = _import_hub()
    learned = classifier._fitted()
    card = model_card(learned, place.repo_id, include_exemplars, licence)
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, FILE)
        classifier.save(path, include_exemplars=include_exemplars)
        files = {FILE: path, CARD: card.encode(errors="backslashreplace")}
        with _naming(place, "written to"):
            api = hub.HfApi(token=place.token, library_name="gradmix")
            api.create_repo(place.repo_id, private=private, exist_ok=True)
            done = api.create_commit(
                place.repo_id,
                [hub.CommitOperationAdd(name, content) for name, content in files.items()],
                commit_message=f"Upload a classifier of {_classes(learned)}",
                revision=place.revision,
            )
    return str(done.commit_url)


def download(
    place: Place,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
) -> Path:
    """Return the file of a classifier on the Hub; see `IncrementalClassifier.from_pretrained`."""
    hub = _import_hub()
    with _naming(place, "read from"):
        api = hub.HfApi(token=place.token, library_name="gradmix")
        path = api.hf_hub_download(
            place.repo_id,
            FILE,
            revision=place.revision,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
        )
    return Path(path)


@contextmanager
def _naming(place: Place, action: str) -> Iterator[None]:
    """Turn the errors of the Hub and the network into errors that name the repository."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise InputError(f"repo_id is {place.repo_id!r}; give 'user/name': {error}") from error
    except Exception as error:
        at = "" if place.revision is None else f" at {place.revision!r}"
        raise FileError(
            f"{place.repo_id!r}{at} cannot be {action} the Hub: {type(error).__name__}: {error}"
        ) from error


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPackageError(
            "the Hub needs huggingface_hub; install it with: pip install 'gradmix[hub]'"
        ) from error
    return huggingface_hub


# --- the model card -------------------------------------------------------------------------


def model_card(
    learned: Learned, repo_id: str, include_exemplars: bool = False, licence: str | None = None
) -> str:
    """Return a model card in Markdown with a YAML header.

    Args:
        learned: The knowledge of the classifier.
        repo_id: The repository that the card belongs to.
        include_exemplars: Whether its file contains exemplars and held-out samples.
        licence: The Hub's name of a licence; None names none.
    """
    known = facts(learned)
    if not include_exemplars:
        known["memory"] = "not in this file"
    parts = [
        _header(learned, licence),
        f"# {_text(repo_id)}",
        f"A classifier of {_classes(learned)} that learns further classes over time, made with "
        "gradmix.",
        _table(("", ""), known.items()),
        _accuracy(learned.history[-1]),
        "## History",
        _history(learned.history),
        "## Load",
        _load(learned, repo_id, include_exemplars),
        "## What the file reveals",
        _reveals(learned, include_exemplars),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(learned: Learned, licence: str | None) -> str:
    task = "image" if learned.setup.given.images else "tabular"
    lines = ["library_name: gradmix", f"pipeline_tag: {task}-classification"]
    if licence is not None:
        lines.append(f"license: {json.dumps(licence)}")  # JSON is valid YAML
    tags = ("gradmix", "continual-learning", "class-incremental-learning")
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _accuracy(report: Report) -> str:
    if not report.accuracy:
        return ""
    rows = [(label, f"{after:.3f}", count) for label, _, after, count in report.accuracy]
    title = f"## Accuracy on {report.measured_on} after the last call"
    return f"{title}\n\n{_table(('class', 'accuracy', 'samples'), rows)}"


def _history(history: Sequence[Report]) -> str:
    rows = [
        (
            report.call,
            ", ".join(map(str, report.new)),
            ", ".join(map(str, report.more)),
            report.samples,
            *("unknown" if x is None else f"{x:.3f}" for x in (report.after, report.forgotten)),
        )
        for report in history
    ]
    return _table(("call", "new classes", "more of", "samples", "accuracy", "forgotten"), rows)


def _load(learned: Learned, repo_id: str, include_exemplars: bool) -> str:
    params, method = learned.setup.params, learned.method
    own = ", model=your_network" if not isinstance(params["model"], str) else ""
    moved = ", weights=your_file" if params["weights"] is not None else ""
    code = (
        "```python\nfrom gradmix import IncrementalClassifier\n\n"
        f"classifier = IncrementalClassifier.from_pretrained({repo_id!r}{own}{moved})\n"
        "classifier.predict(X)\n```"
    )
    if include_exemplars or not method.learns_stored():
        return f"{code}\n\n`classifier.partial_fit(X, y)` teaches it further classes."
    return (
        f"{code}\n\n`partial_fit` refuses to learn more, because `{learned.setup.method}` needs "
        "exemplars of the known classes, which are not in this file."
    )


def _reveals(learned: Learned, include_exemplars: bool) -> str:
    stored = "No exemplars and no held-out samples are in the file."
    if include_exemplars:
        held = 0 if learned.holdout is None else len(learned.holdout)
        count = len(learned.method.stored_samples().y) + held
        kind = "Pictures" if learned.setup.given.images else "Rows"
        if learned.setup.backbone is not None and learned.pictures is None:
            kind = "Embeddings"
        stored = f"{kind} of {plural(count, 'real sample')} are in the file."
    knowledge = "It contains sums, from which the mean feature of each class follows."
    if learned.method.trains:
        knowledge = "Attacks on trained weights may reveal single samples."
    place = "It contains the path of the file with the backbone's weights."
    lines = [
        stored,
        knowledge,
        "It contains the names of the classes, the number of samples of each, and the history.",
        *([] if learned.setup.params["weights"] is None else [place]),
    ]
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

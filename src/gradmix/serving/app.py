"""The web application: a model file as a page, and as JSON for programs.

Predictions run in threads, so the event loop stays free. One task looks every second whether the
model file has been replaced.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, HTTPException, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from PIL import Image
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradmix import __version__
from gradmix.classifier import IncrementalClassifier
from gradmix.classifier.inputs import Label
from gradmix.classifier.report import Ranking, rank
from gradmix.data.image_folders.given import photo_sizes
from gradmix.errors import CorruptFileError, GradMixError, InputError

MOST_PHOTOS = 32  # per request
AT_ONCE = 2  # requests that decode and compute at the same time; others wait
MOST_CLASSES = 1000  # in an answer
LARGEST_RATE = 0.5
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src blob:; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class TooLargeError(InputError):
    """A photo has more pixels than the server accepts."""


class Loaded(NamedTuple):
    """A classifier, and the false-alarm rate that its held-out photos allow."""

    classifier: IncrementalClassifier
    rate: float | None  # None: no photo is called unknown
    classes: list[Label]  # that may be predicted


class ServedModel:
    """The newest valid model of a file; photos with more than `max_pixels` are refused."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        false_alarm_rate: float = 0.05,
        max_pixels: int = 50_000_000,
        device: str | None = None,
    ) -> None:
        if not 0 < false_alarm_rate <= LARGEST_RATE:
            raise InputError(
                f"false_alarm_rate is {false_alarm_rate}; give a number above 0 and at most "
                f"{LARGEST_RATE}"
            )
        self.path, self.problem = Path(path), ""
        self._rate, self._max_pixels, self._device = false_alarm_rate, max_pixels, device
        self._seen = self._version()
        self.loaded = self._load()  # the model that is served now
        self._room = BoundedSemaphore(AT_ONCE)

    def refresh(self) -> None:
        """Load the file again if it has changed; keep the old model if the new one is invalid."""
        seen, self._seen = self._seen, self._version()
        if self._seen == seen:
            return
        try:
            self.loaded = self._load()
            self.problem = ""
        except (GradMixError, OSError) as error:
            self.problem = f"the file has changed and cannot be used: {error}"

    def rank(self, photos: list[bytes], top: int) -> list[Ranking]:
        """Return the most likely classes of encoded photos; TooLargeError for too many pixels."""
        with self._room:
            for row, (width, height) in enumerate(photo_sizes(photos, "photo")):
                if width * height > self._max_pixels:
                    raise TooLargeError(
                        f"photo {row + 1} is {width}x{height}; at most {self._max_pixels:,} pixels "
                        "are accepted"
                    )
            classifier, rate, _ = self.loaded
            return rank(classifier, photos, top, rate, "photo")

    def _version(self) -> tuple[int, ...] | None:
        """Return what changes when the file is replaced; None if there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> Loaded:
        classifier = IncrementalClassifier.load(self.path, device=self._device)
        learned = classifier._fitted()
        if not learned.setup.given.images:
            raise InputError(f"{self.path} has learned rows of numbers; only photos can be served")
        allowed = max(self._rate, 1 / (len(learned.holdout) + 1))  # by the held-out photos
        rate = allowed if allowed <= LARGEST_RATE else None
        rank(classifier, [Image.new("RGB", (8, 8))], 1, rate)  # prepares the network
        return Loaded(classifier, rate, [_text(label) for label in learned.labels.known])


def _text(label: Label) -> Label:
    """Return a label that JSON can hold: folder names may contain bytes that are not text."""
    return label.encode(errors="replace").decode() if isinstance(label, str) else label


def create_app(
    model: ServedModel, *, max_bytes: int = 10_000_000, refresh_seconds: float = 1.0
) -> FastAPI:
    """Return the application that serves a model and reads requests of at most `max_bytes`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def keep_fresh() -> None:
            while True:
                await asyncio.sleep(refresh_seconds)
                await asyncio.to_thread(model.refresh)

        task = asyncio.create_task(keep_fresh())
        yield
        task.cancel()

    app = FastAPI(
        title="gradmix", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # the documentation pages of FastAPI would load files from other servers
    app.add_middleware(LimitBody, most=max_bytes)
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        """Answer a request with wrong fields in one sentence, like all other errors."""
        first = error.errors()[0]
        reason = "the form field photo has no file; upload photos in it: curl -F photo=@cat.jpg …"
        if "top" in first["loc"]:
            reason = f"top is {first['input']!r}; give a whole number from 1 to {MOST_CLASSES}"
        return JSONResponse({"detail": reason}, 422)

    @app.exception_handler(GradMixError)
    async def explain(_: Request, error: GradMixError) -> JSONResponse:
        """Answer a request whose photos cannot be used with the reason."""
        codes = {TooLargeError: 413, CorruptFileError: 422}
        return JSONResponse({"detail": str(error)}, codes.get(type(error), 500))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=PAGE_HEADERS)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return "ok", or "stale" with the reason why a new model file is not used."""
        return {
            "status": "stale" if model.problem else "ok",
            "model": _text(model.path.name),
            "classes": len(model.loaded.classes),
            "problem": model.problem or None,
        }

    @app.get("/classes")
    async def classes() -> dict[str, Any]:
        """Return the classes, the share of photos called unknown by mistake, and the limit."""
        _, rate, names = model.loaded
        return {"classes": names, "false_alarm_rate": rate, "max_bytes": max_bytes}

    @app.post("/predict")
    def predict(
        photo: list[UploadFile], top: Annotated[int, Query(ge=1, le=MOST_CLASSES)] = 5
    ) -> dict[str, Any]:
        """Return the most likely classes of each uploaded photo."""
        if len(photo) > MOST_PHOTOS:
            raise HTTPException(413, f"{len(photo)} photos; send at most {MOST_PHOTOS} at a time")
        found = model.rank([part.file.read() for part in photo], top)
        return {
            "predictions": [
                {
                    "file": part.filename,
                    "classes": [
                        {"class": _text(label), "probability": p} for label, p in row.classes
                    ],
                    "unknown": row.unknown,
                    "novelty": row.novelty,
                }
                for part, row in zip(photo, found, strict=True)
            ]
        }

    return app


class LimitBody:
    """Answers 413 to requests with more than `most` bytes, before they are read completely."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the bytes of a request while it arrives."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                reason = f"the photo is too large; at most {self.most / 1e6:g} MB are accepted"
                raise HTTPException(413, reason, headers={"Connection": "close"})
            return message

        await self.app(scope, counted, send)

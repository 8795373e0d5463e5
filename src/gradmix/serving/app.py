"""The web application: a page, and JSON for programs.

Predictions run in threads, so the event loop stays free. One task looks every second whether the
model file has been replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, UploadFile
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradmix import __version__
from gradmix.errors import CorruptFileError, GradMixError
from gradmix.serving.model import ServedModel, TooLargeError

MOST_PHOTOS = 32  # per request
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src blob:; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    model: ServedModel, *, max_bytes: int = 10_000_000, refresh_seconds: float = 1.0
) -> FastAPI:
    """Return the application that serves a model.

    Args:
        model: The model file.
        max_bytes: The largest request that is read.
        refresh_seconds: How often to look for a new file.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_keep_fresh(model, refresh_seconds))
        yield
        task.cancel()

    app = FastAPI(
        title="gradmix", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # the documentation pages of FastAPI would load files from other servers
    app.add_middleware(LimitBody, most=max_bytes)
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=PAGE_HEADERS)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return "ok", or "stale" with the reason why a new model file is not used."""
        return {
            "status": "stale" if model.problem else "ok",
            "model": model.path.name.encode(errors="replace").decode(),
            "classes": len(model.loaded.classes),
            "problem": model.problem or None,
        }

    @app.get("/classes")
    async def classes() -> dict[str, Any]:
        """Return the classes, the share of photos called unknown by mistake, and the limit."""
        loaded = model.loaded
        return {
            "classes": loaded.classes,
            "false_alarm_rate": loaded.rate,
            "max_bytes": max_bytes,
        }

    @app.post("/predict")
    def predict(
        photo: list[UploadFile], top: Annotated[int, Query(ge=1, le=1000)] = 5
    ) -> dict[str, Any]:
        """Return the most likely classes of each uploaded photo."""
        if len(photo) > MOST_PHOTOS:
            raise HTTPException(413, f"{len(photo)} photos; send at most {MOST_PHOTOS} at a time")
        try:
            found = model.rank([part.file.read() for part in photo], top)
        except TooLargeError as error:
            raise HTTPException(413, str(error)) from error
        except CorruptFileError as error:
            raise HTTPException(422, str(error)) from error
        except GradMixError as error:
            raise HTTPException(500, str(error)) from error
        return {
            "predictions": [
                {
                    "file": part.filename,
                    "classes": [{"class": name, "probability": p} for name, p in row.classes],
                    "unknown": row.unknown,
                    "novelty": row.novelty,
                }
                for part, row in zip(photo, found, strict=True)
            ]
        }

    return app


async def _keep_fresh(model: ServedModel, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(model.refresh)


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

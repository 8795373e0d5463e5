"""gradmix serve: a web page and a JSON API for a model file."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from gradmix.cli.terminal import remark


def serve(
    model: Annotated[str, typer.Argument(help="File that `gradmix learn` wrote.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    max_megabytes: Annotated[
        float, typer.Option(min=0.001, max=1000, help="Largest upload in megabytes.")
    ] = 10.0,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, max=80, help="Largest photo in megapixels.")
    ] = 50.0,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of photos of known classes that may be called unknown.")
    ] = 0.05,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps. Default: as saved.")
    ] = None,
) -> None:
    """Serve a model as a web page with a JSON API; needs the extra `serve`.

    The model is loaded again when its file is replaced. There is no password: listen on other
    addresses than 127.0.0.1 only in a network that you trust.
    """
    from gradmix.errors import InputError, MissingPackageError

    try:
        import python_multipart  # noqa: F401  # FastAPI reads uploads with it
        import uvicorn

        from gradmix.serving.app import ServedModel, create_app
    except ImportError as error:
        raise MissingPackageError(
            "serve needs fastapi, uvicorn and python-multipart; install them with: "
            "pip install 'gradmix[serve]'"
        ) from error

    pixels = round(max_megapixels * 1e6)
    served = ServedModel(model, false_alarm_rate=false_alarm_rate, max_pixels=pixels, device=device)
    app = create_app(served, max_bytes=round(max_megabytes * 1e6))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --host or --port"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    remark(f"serving {model} on {address}; Ctrl-C stops")
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listening])

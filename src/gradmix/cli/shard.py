"""gradmix shard: write a folder of photos to shards."""

from __future__ import annotations

from typing import Annotated

import typer

from gradmix.cli.terminal import show, showing_progress


def shard(
    photos: Annotated[
        str,
        typer.Argument(help="Folder that contains a folder of images for each class, or a zip."),
    ],
    to: Annotated[str, typer.Option(help="Folder of the shards; it must not exist.")],
    size: Annotated[int, typer.Option(min=1, help="Size of a shard in MB.")] = 256,
) -> None:
    """Write a folder of photos to tar files, for data that do not fit into memory.

    `gradmix learn SHARDS` and `--data folder:SHARDS` read the shards like the folder: with the same
    classes, photos and order. Photos keep their content. The shards appear when all are complete.
    """
    from gradmix.data.image_folders.write_shards import write_shards

    with showing_progress() as progress:
        bar = progress.add_task("writing shards", total=None, status="")

        def show_photos(done: int, total: int) -> None:
            progress.update(bar, total=total, completed=done, status=f"{done} of {total} photos")

        shards = write_shards(photos, to, size=size * 10**6, progress=show_photos)
    show(f"{'1 shard' if len(shards) == 1 else f'{len(shards)} shards'} saved in {to}")

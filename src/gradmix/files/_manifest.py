"""What a file says of itself: format, version, kind, and its members with their checksums.

Every version of the format begins with the zip header of a stored `manifest.json`, so that any
gradmix can tell which version and kind a file is of, whatever follows.
"""

from __future__ import annotations

import json
from importlib.metadata import version as version_of
from typing import Any, NamedTuple

from gradmix.errors import InputError
from gradmix.files._values import Damaged
from gradmix.files._zip_layout import Member

FORMAT = "gradmix"
HERE = version_of("gradmix")
VERSION = 2
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
MANIFEST_LIMIT = 1 << 16  # bytes
STATE_LIMIT = 16 << 20


class Manifest(NamedTuple):
    """What a file says of itself."""

    kind: str  # what it is a file of
    version: int  # of the format
    gradmix: str  # the version that wrote it
    members: tuple[Member, ...]  # its state and its tensors
    digests: tuple[str, ...]  # XXH3 of each, 128 bits


def compose(manifest: Manifest) -> bytes:
    """The manifest as text."""
    members = [
        {**member._asdict(), "xxh3": digest}
        for member, digest in zip(manifest.members, manifest.digests, strict=True)
    ]
    about = {"format": FORMAT, **manifest._asdict(), "members": members}
    del about["digests"]
    return to_json(about)


def parse(text: bytes) -> Manifest:
    """The manifest of a file that this gradmix can read."""
    about = from_json(text, "manifest")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise Damaged("it is no gradmix file (its manifest is of another format)")
    version, writer = about.get("version"), str(about.get("gradmix"))[:40]
    if type(version) is not int or version < 1:
        raise Damaged(f"its version is {str(version)[:40]}, which does not exist")
    if version > VERSION:
        raise Damaged(
            f"it is of version {version} of the format, written by gradmix {writer}; this is "
            f"gradmix {HERE}, which reads up to version {VERSION}: install {writer} or later"
        )
    if version < VERSION:
        raise Damaged(
            f"it is of version {version} of the format, of before the first release of gradmix: "
            "learn anew, or read it with the gradmix that wrote it"
        )
    kind, listed = about.get("kind"), about.get("members")
    if not (isinstance(kind, str) and isinstance(listed, list) and len(listed) == 2):
        raise Damaged("its manifest does not say what it holds")
    members, digests = zip(*map(_parse_member, listed), strict=True)
    if [member.name for member in members] != [STATE, TENSORS]:
        raise Damaged(f"its manifest does not list {STATE} and {TENSORS}")
    if members[0].size > STATE_LIMIT:
        raise Damaged(f"its state claims {members[0].size} bytes of {STATE_LIMIT} allowed")
    return Manifest(kind, version, writer, members, digests)


def _parse_member(entry: Any) -> tuple[Member, str]:
    kinds = {"name": str, "size": int, "crc32": int, "xxh3": str}
    if not (
        isinstance(entry, dict)
        and entry.keys() == kinds.keys()
        and all(type(entry[key]) is kind for key, kind in kinds.items())
        and 0 <= entry["size"] < 2**63
        and 0 <= entry["crc32"] < 2**32
    ):
        raise Damaged("its manifest does not describe its members as it should")
    return Member(entry["name"], entry["size"], entry["crc32"]), entry["xxh3"]


def to_json(value: Any) -> bytes:
    """Strict JSON, as short as it can be."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise InputError(f"the state cannot be kept in a file: {error}") from error


def from_json(text: bytes, what: str) -> Any:
    """The values of the part of a file called `what`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise Damaged(f"its {what} is nested too deep") from None
    except ValueError as error:
        raise Damaged(f"its {what} is no JSON: {error}") from None

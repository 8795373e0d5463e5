"""One file for a state: a zip of safetensors and JSON, with a version and checksums.

`write_archive` and `read_archive` keep nested dicts, lists and tuples of tensors, numbers, text,
booleans and None, exactly. Reading runs nothing that stands in the file, takes no more memory than
it has bytes, and accepts only what `write_archive` would have written. See docs/files.md.
"""

from gradmix.files._manifest import VERSION, Manifest
from gradmix.files._read import read_archive, read_manifest
from gradmix.files._write import write_archive
from gradmix.files.lock import locked

__all__ = ["VERSION", "Manifest", "locked", "read_archive", "read_manifest", "write_archive"]

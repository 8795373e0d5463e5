"""State files: one file holds nested values and tensors, with a version and checksums.

`write_state_file` and `read_state_file` store nested dicts, lists and tuples of tensors, numbers,
text, booleans and None exactly. The file is a zip of safetensors and JSON. Reading executes nothing
from the file, limits memory by the size of the file, and accepts only what `write_state_file`
writes. See docs/files.md.
"""

from gradmix.files.atomic_write import locked
from gradmix.files.state_file import read_manifest, read_state_file, write_state_file

__all__ = ["locked", "read_manifest", "read_state_file", "write_state_file"]

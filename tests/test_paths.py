"""Paths that a caller gives: checked quickly, and named in errors."""

import subprocess
import sys

import pytest

from gradmix.errors import DataNotFoundError, InputError
from gradmix.paths import checked_path, existing_path


def test_paths_that_exist_and_paths_that_do_not(tmp_path):
    assert existing_path(str(tmp_path)) == tmp_path
    with pytest.raises(
        DataNotFoundError, match=r"x: no such file or folder; check .*, and give it"
    ):
        existing_path(tmp_path / "x", remedy="give it")


@pytest.mark.parametrize("path", ["a\0b", b"a", 3])
def test_impossible_paths(path):
    with pytest.raises(InputError, match="is not a path; give the path of a file or a folder"):
        checked_path(path)


def test_a_missing_folder_of_photos_is_refused_before_slow_imports(tmp_path):
    code = (
        "import sys; from gradmix.cli.learn import learn\n"
        "from gradmix.errors import DataNotFoundError\n"
        "for photos, test in ((sys.argv[1], None), ('.', sys.argv[1])):\n"
        "    try: learn(photos, 'm.gradmix', test)\n"
        "    except DataNotFoundError: assert 'torch' not in sys.modules\n"
        "    else: sys.exit('learned')"
    )
    missing = str(tmp_path / "missing")
    subprocess.run([sys.executable, "-c", code, missing], check=True)

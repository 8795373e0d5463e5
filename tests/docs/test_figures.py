"""One command draws every figure of the documentation, from committed results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def files(folder, *endings):
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.suffix in endings}
    return {path for path in found if path.parts[0] != "_build"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pytest.importorskip("matplotlib", reason="the extra gradmix[figures] is not installed")
    folder = tmp_path_factory.mktemp("figures")
    subprocess.run([sys.executable, "-m", "docs.figures", folder], cwd=ROOT, check=True)
    return folder


def test_the_command_writes_every_figure(drawn):
    assert files(drawn, ".svg") == files(ROOT / "docs", ".svg", ".png", ".jpg", ".gif")


def test_figures_name_no_folder_and_load_nothing(drawn):
    for path in files(drawn, ".svg"):
        text = (drawn / path).read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert "@font-face" not in text


def test_the_pages_of_the_reproduction_show_the_committed_results(drawn):
    for path in files(drawn, ".md"):
        committed = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert (drawn / path).read_text(encoding="utf-8") == committed, path


def test_the_demo_in_the_readme_shows_the_committed_results(drawn):
    assert (drawn / "demo.svg").read_bytes() == (ROOT / "docs" / "demo.svg").read_bytes()

"""gradmix inspect: forgotten classes, and names that not every file or terminal can take."""

import os

import numpy as np
import pytest

from gradmix import IncrementalClassifier

NAMES = ["été", os.fsdecode(b"\xff\xfe")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    X = np.random.default_rng(0).integers(0, 256, size=(24, 3, 9, 9)).astype(np.uint8)
    path = tmp_path_factory.mktemp("model") / "m.g"
    made = IncrementalClassifier(epochs=1, model="mlp-small", device="cpu", random_state=0)
    made.fit(X, 12 * NAMES).save(path)
    return path


def test_a_call_whose_classes_are_forgotten_says_so(model, tmp_path, gradmix):
    made = IncrementalClassifier.load(model)
    made.partial_fit(np.zeros((5, 3, 9, 9), dtype=np.uint8), 5 * ["emu"])
    made.forget("emu").save(tmp_path / "m.g")
    rows = [line.split("│") for line in gradmix("inspect", tmp_path / "m.g").splitlines()]
    assert [row[2].strip() for row in rows if row[1:2] == [" 2    "]] == ["(forgotten)"]


@pytest.mark.parametrize("suffix", ["html", "png"])
def test_sheets_of_classes_whose_names_are_no_text(model, tmp_path, suffix, gradmix):
    gradmix("inspect", model, "-o", tmp_path / f"s.{suffix}")
    assert (tmp_path / f"s.{suffix}").stat().st_size
    if suffix == "html":
        page = (tmp_path / "s.html").read_text(encoding="utf-8")
        assert "<h2>été (" in page
        assert r"<h2>\udcff\udcfe (" in page


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(e, marks=pytest.mark.slow) for e in ("latin-1", "utf-8"))]
)
def test_terminals_that_cannot_show_a_name_show_something_else(model, tmp_path, encoding, shell):
    link = tmp_path / "modèle-日"
    link.symlink_to(model)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    done = shell("inspect", link, env=environment, encoding=encoding)
    assert done.returncode == 0, done.stderr
    shown = "été".encode(encoding, "replace").decode(encoding)
    assert f" {shown} " in done.stdout
    assert "modèle-日: ".encode(encoding, "replace").decode(encoding) in done.stdout


@pytest.mark.slow  # above, the name of a class is no text
def test_a_file_whose_name_is_no_text(model, tmp_path, shell):
    link = tmp_path / os.fsdecode(b"\xff")
    try:
        link.symlink_to(model)
    except OSError:
        pytest.skip("this file system takes text only")
    done = shell("inspect", link, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr
    assert "/?: " in done.stdout

"""The examples of the README and the documentation run as they are printed."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gradmix import ResultStore
from gradmix.cli import main
from gradmix.methods import METHODS
from gradmix.runs.config import expand
from gradmix.runs.sweep import read_grids

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCS = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
PAGES = ["README.md", *sorted(page.relative_to(ROOT).as_posix() for page in DOCS)]


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for name, code in BLOCK.findall(text) if name == language]


PYTHON = [
    pytest.param(code, id=f"{page}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"))
]


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("code", PYTHON)
def test_python_examples_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_readme_has_an_example_of_each_use():
    python, shell = "".join(blocks("README.md", "python")), "".join(blocks("README.md", "sh"))
    assert "partial_fit" in python
    assert "GradMix()" in python
    assert "gradmix learn" in shell


def make_photos(folder, colours):
    """Write 28 photos of each class, all in its colour."""
    rng = np.random.default_rng(0)
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(28):
            pixels = np.clip(rng.normal(colour, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03}.jpg")


def test_the_commands_of_the_readme_learn_and_predict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos", {"cat": (200, 60, 60), "dog": (60, 60, 200)})
    make_photos(tmp_path / "more", {"bird": (60, 200, 60)})
    make_photos(tmp_path / "holiday", {"beach": (200, 200, 60)})
    (tmp_path / "some.jpg").write_bytes((tmp_path / "more/bird/000.jpg").read_bytes())
    lines = "".join(blocks("README.md", "sh")).splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("gradmix ")]
    names = [command[1] for command in commands]
    assert names == ["learn", "learn", "predict", "predict", "inspect", "serve"]
    output = {}
    for program, *arguments in commands[:-1]:  # tests/cli/test_serve.py serves a model
        quick = ["--epochs", "2"] if arguments[0] == "learn" else []
        monkeypatch.setattr("sys.argv", [program, *arguments, *quick])
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
        output[" ".join(arguments)] = capsys.readouterr().out
    shown = {name: set(re.findall(r"\w+", text)) for name, text in output.items()}
    assert {"cat", "dog", "bird"} <= shown["predict my.gradmix some.jpg --top 3"]
    assert "beach" in shown["predict my.gradmix holiday --unknown"]


def test_the_example_of_an_own_loop_learns(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_loop.py"), run_name="__main__")
    scores = [float(score) for score in re.findall(r"accuracy (\S+)", capsys.readouterr().out)]
    assert len(scores) == 5
    assert scores[0] > 0.95
    assert scores[-1] > 0.7


@pytest.mark.parametrize(("method", "first"), [("er", 60), ("er-ridge", 80)])
def test_the_recipe_accurate_has_committed_results(method, first):
    seeds = list(range(first, first + 5))
    grids = read_grids(ROOT / "examples" / "accurate.toml", method=[method], seed=seeds)
    store = ResultStore(ROOT / "results" / "accurate")
    results = [store.find(config) for config in expand(grids)[0]]
    assert len(results) == 10
    assert all(result is not None for result in results)
    text = (ROOT / "docs" / "science.md").read_text(encoding="utf-8")
    for result in results:
        assert f"{result.metrics['average_accuracy']:.4f}" in text


def test_the_readme_counts_the_methods():
    assert f" {len(METHODS)} methods, " in (ROOT / "README.md").read_text(encoding="utf-8")

"""gradmix learn, predict and inspect as a user meets them."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from gradmix import IncrementalClassifier
from gradmix.classifier import file
from gradmix.classifier.setup import default_backbone
from gradmix.cli import terminal
from gradmix.errors import (
    CorruptFileError,
    DataNotFoundError,
    FileError,
    FileInUseError,
    GradMixError,
    InputError,
)
from gradmix.files import locked, read_state_file

learning = sys.modules["gradmix.cli.learn"]  # the package has its function by this name

HUES = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 210), "grey": (90, 90, 90)}
QUICK = ("--network", "mlp-small", "--exemplars", 12, "--holdout", 4)


def photos(folder, *classes, each=20, side=9, seed=0):
    """Noisy pictures of one colour each."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(each):
            noise = rng.normal(scale=25, size=(side, side, 3))
            pixels = np.clip(np.array(HUES[name]) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory, gradmix):
    """Learned in two calls."""
    folder = tmp_path_factory.mktemp("model")
    path = folder / "my.gradmix"
    first = photos(folder / "one", "red", "green")
    gradmix("learn", first, "--model", path, *QUICK, "--epochs", 20)
    gradmix("learn", photos(folder / "two", "blue"), "--model", path, "--epochs", 20)
    return path


@pytest.fixture
def said(monkeypatch):
    """What was said on standard error."""
    console = Console(stderr=True, record=True, width=200)
    for place in (learning, terminal):
        monkeypatch.setattr(place, "messages", console)
    return lambda: console.export_text(clear=False)


def test_learning_shows_accuracy_before_and_after(tmp_path, gradmix):
    path = tmp_path / "my.gradmix"
    one, two = photos(tmp_path / "one", "red", "green"), photos(tmp_path / "two", "blue", "red")
    text = gradmix("learn", one, "--model", path, *QUICK, "--epochs", 20)
    assert "learned green, red: 32 images, 20 epochs" in text
    assert "accuracy on held-out images" in text
    assert "new" in text
    text = gradmix("learn", two, "--model", path, "--epochs", 20)
    assert "learned blue; more of red" in text
    assert "accuracy lost on earlier classes" in text
    assert "mean" in text
    classifier = IncrementalClassifier.load(path)
    assert classifier.classes_.tolist() == ["blue", "green", "red"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.gradmix", "one", "two"]


def test_a_test_folder_is_measured_on_as_far_as_it_is_known(tmp_path, said, gradmix):
    test = photos(tmp_path / "test", "red", "grey", "green", seed=1, each=5)
    one = photos(tmp_path / "one", "red", "green")
    report = json.loads(
        gradmix("learn", one, "--model", tmp_path / "m", "--test", test, *QUICK, "--json")
    )
    assert report["measured_on"] == "eval_set"
    assert [(row[0], row[3]) for row in report["accuracy"]] == [("green", 5), ("red", 5)]
    assert "not measured: these classes are unknown: grey" in said()


def test_a_folder_with_train_and_test(tmp_path, gradmix):
    photos(tmp_path / "all" / "train", "red", "green")
    photos(tmp_path / "all" / "test", "red", "green", seed=1, each=3)
    text = gradmix("learn", tmp_path / "all", "--model", tmp_path / "m", *QUICK, "--epochs", 2)
    assert "accuracy on the test folder" in text


@pytest.mark.parametrize("part", ["test", "val"])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("wrapper", [".", "wrapper"])
def test_the_same_folder_to_learn_and_to_test(tmp_path, part, given, wrapper, gradmix):
    photos(tmp_path / "all" / wrapper / "train", "red", "green")
    photos(tmp_path / "all" / wrapper / part, "red", "green", seed=1, each=3)
    test = ("--test", tmp_path / "all") if given else ()
    command = ("learn", tmp_path / "all", "--model", tmp_path / "m", *QUICK, "--epochs", 1)
    report = json.loads(gradmix(*command, *test, "--json"))
    assert report["measured_on"] == "eval_set"
    assert [(row[0], row[3]) for row in report["accuracy"]] == [("green", 3), ("red", 3)]


def test_a_class_called_train_and_one_with_folders(tmp_path, gradmix):
    one = photos(tmp_path / "one", "red", "green", "blue")
    (one / "red").rename(one / "train")
    (one / "green").rename(one / "test")
    (one / "blue").rename(one / "test" / "more")
    report = json.loads(
        gradmix("learn", one, "--model", tmp_path / "m", *QUICK, "--epochs", 1, "--json")
    )
    assert report["new"] == ["test", "train"]
    assert report["measured_on"] != "eval_set"
    assert report["samples"] == 60 - 2 * 4  # held out


def test_few_images_are_warned_of(tmp_path, said, gradmix):
    one = photos(tmp_path / "one", "red", "green", each=2)
    text = gradmix("learn", one, "--model", tmp_path / "m", *QUICK, "--epochs", 1)
    assert "class 'red' has 2 samples so far" in said()
    assert "accuracy is unknown" in text


def test_the_accuracy_on_a_single_class_is_not_shown(tmp_path, gradmix):
    command = ("--model", tmp_path / "m", *QUICK, "--epochs", 1)
    text = gradmix("learn", photos(tmp_path / "one", "red"), *command)
    assert "accuracy is not measured: there is only one class" in text
    assert "1.000" not in text
    text = gradmix("learn", photos(tmp_path / "two", "blue"), *command)
    assert "accuracy on held-out images" in text


def test_an_empty_class_folder_is_skipped(tmp_path, said, gradmix):
    one = photos(tmp_path / "one", "red", "green")
    (one / "blue").mkdir()
    text = gradmix("learn", one, "--model", tmp_path / "m", *QUICK, "--epochs", 1)
    assert "learned green, red: " in text
    assert f"warning: {one}: skipped 1 folder without images: blue" in said()


def test_photos_that_cannot_be_read(tmp_path, said, gradmix):
    one, test = photos(tmp_path / "one", "red", "green"), photos(tmp_path / "test", "red", each=3)
    for path in (one / "red" / "3.png", test / "red" / "1.png"):
        path.write_bytes(b"no picture")
    command = ("learn", one, "--model", tmp_path / "m", "--test", test, *QUICK, "--epochs", 2)
    with pytest.raises(CorruptFileError, match=r"3\.png.*1 of 40 .*--skip-unreadable"):
        gradmix(*command)
    assert not (tmp_path / "m").exists()
    report = json.loads(gradmix(*command, "--skip-unreadable", "--json"))
    assert [row[3] for row in report["accuracy"] if row[0] == "red"] == [2]
    assert "skipped 1 of 40 images that cannot be read:\n  " in said()
    assert "1 of 3 images that cannot be read" in said()


def test_a_single_photo_is_not_a_folder_of_classes(tmp_path, gradmix):
    photo = photos(tmp_path / "one", "red", each=1) / "red" / "0.png"
    with pytest.raises(InputError, match=r"0\.png is a file; give a folder"):
        gradmix("learn", photo, "--model", tmp_path / "m", *QUICK)


def test_predict_leaves_out_what_cannot_be_read(model, tmp_path, said, gradmix):
    seen = photos(tmp_path / "p", "red", each=3, seed=5)
    (seen / "red" / "1.png").write_bytes(b"no picture")
    with pytest.raises(CorruptFileError, match=r"1\.png.*--skip-unreadable"):
        gradmix("predict", model, seen)
    found = json.loads(gradmix("predict", model, seen, "--skip-unreadable", "--json"))
    assert [entry["file"][-5:] for entry in found] == ["0.png", "2.png"]
    assert re.search(r"^skipped: .*1\.png: not an image file", said(), re.M)


def test_predict_sees_what_learn_sees(model, tmp_path, said, gradmix):
    seen = photos(tmp_path / "p", "red", each=1, seed=5)
    for name in ("red/._0.png", ".thumbs/x.png"):
        (seen / name).parent.mkdir(exist_ok=True)
        (seen / name).write_bytes(b"no picture")
    (seen / "linked").symlink_to(photos(tmp_path / "q", "blue", each=1) / "blue", True)
    (seen / "linked" / "again").symlink_to(seen, True)
    found = json.loads(gradmix("predict", model, seen, "--json"))
    assert [entry["file"] for entry in found] == [
        str(seen / name) for name in ("linked/0.png", "red/0.png")
    ]
    (seen / "red" / "1.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataNotFoundError, match=r"red/1\.png"):
        gradmix("predict", model, seen)
    again = json.loads(gradmix("predict", model, seen, "--skip-unreadable", "--json"))
    assert [entry["file"] for entry in again] == [entry["file"] for entry in found]
    assert re.search(r"^skipped: .*1\.png: no such file", said(), re.M)


def test_predict(model, tmp_path, gradmix):
    seen = photos(tmp_path / "p", "red", "blue", each=3, seed=5)
    text = gradmix("predict", model, seen / "red" / "0.png", seen / "blue")
    lines = text.splitlines()
    assert len(lines) == 4
    assert "red/0.png: red 0." in lines[0] or "red/0.png: red 1." in lines[0]
    found = json.loads(gradmix("predict", model, seen, "--top", 2, "--json"))
    assert len(found) == 6
    assert found[0]["classes"][0]["class"] == "blue"
    assert all(len(entry["classes"]) == 2 for entry in found)
    first = found[0]["classes"]
    assert first[0]["probability"] >= first[1]["probability"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_model_of_a_device_that_is_not_here(model, tmp_path, gradmix):
    classifier = IncrementalClassifier.load(model).set_params(device="cuda")
    classifier.save(tmp_path / "m")
    seen = photos(tmp_path / "p", "red", each=1)
    with pytest.raises(FileError, match="device='cpu'"):
        gradmix("predict", tmp_path / "m", seen)
    assert "red/0.png: red" in gradmix("predict", tmp_path / "m", seen, "--device", "cpu")
    assert "red" in gradmix("inspect", tmp_path / "m")


def test_a_zip_of_photos_and_a_folder_for_a_model(tmp_path, gradmix):
    shutil.make_archive(str(tmp_path / "photos"), "zip", photos(tmp_path / "photos", "red", "blue"))
    gradmix("learn", tmp_path / "photos.zip", "--model", tmp_path / "my", *QUICK, "--epochs", 1)
    assert IncrementalClassifier.load(tmp_path / "my").classes_.tolist() == ["blue", "red"]
    for place in (tmp_path, "."):
        with pytest.raises(FileError, match="is a folder; give a file"):
            gradmix("learn", tmp_path / "photos", "--model", place, *QUICK)


def test_names_that_look_like_markup_or_steer_a_terminal(tmp_path, gradmix):
    names = ["[/x]", "[red]cat", "a\x1b[31mb", "\udcff"]
    X = np.random.default_rng(0).normal(size=(24, 4))
    IncrementalClassifier(epochs=1).fit(X, 6 * names).save(tmp_path / "my")
    text = gradmix("inspect", tmp_path / "my")
    assert "[/x]" in text
    assert "[red]cat" in text
    assert "a\N{REPLACEMENT CHARACTER}[31mb" in text


def test_inspect(model, tmp_path, gradmix):
    text = gradmix("inspect", model, "-o", tmp_path / "sheet.png")
    for words in (
        "mlp-small",
        "method er, mix auto",
        "held out",
        "accuracy after",
        f"{model.stat().st_size:,}",
    ):
        assert words in " ".join(text.split())
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width >= 8 * 50
        assert sheet.height >= 3 * 50
        colours = np.asarray(sheet.convert("RGB")).reshape(-1, 3).astype(int)
    for name in ("red", "green", "blue"):
        assert (np.abs(colours - HUES[name]).max(axis=1) < 60).sum() > 1000
    gradmix("inspect", model, "-o", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page
    facts = json.loads(gradmix("inspect", model, "--json"))
    assert [row["class"] for row in facts["classes"]] == ["green", "red", "blue"]
    assert [row["exemplars"] + row["held_out"] for row in facts["classes"]] == [12] * 3
    assert len(facts["history"]) == 2


NO_FOLDER = "none: no such file or folder; check the path, .* a folder of images for each class$"
NO_PHOTO = "none.png: no such file or folder; check the path, and give image files or folders$"


def test_errors_are_clear_and_change_nothing(model, tmp_path, gradmix):
    before = model.read_bytes()
    one = photos(tmp_path / "one", "grey")
    for error, match, *command in (
        (DataNotFoundError, NO_FOLDER, "learn", tmp_path / "none", "--model", model),
        (InputError, "start again: fit", "learn", one, "--model", model, "--exemplars", 99),
        (InputError, "unknown method", "learn", one, "--model", tmp_path / "m", "--method", "x"),
        (InputError, r"image_size \(--size\) is 0; give 8 or more", "learn", one, "--size", 0,
         "--model", tmp_path / "m"),
        (FileError, "not a gradmix file", "learn", one, "--model", one / "grey" / "0.png"),
        (FileError, "cannot be read", "predict", tmp_path / "none", one),
        (DataNotFoundError, NO_PHOTO, "predict", model, tmp_path / "none.png"),
        (InputError, "has no image files", "predict", model, tmp_path_with_nothing(tmp_path)),
        (InputError, ".png or .html", "inspect", model, "-o", tmp_path / "x.gif"),
        (FileError, "not a gradmix file", "inspect", one / "grey" / "0.png"),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            gradmix(*command)
    with locked(model), pytest.raises(FileInUseError):
        gradmix("learn", one, "--model", model)
    assert model.read_bytes() == before


def tmp_path_with_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


# --- stopped and resumed --------------------------------------------------------------------

SAVING_ALWAYS = """
import os, signal, sys
from gradmix.cli import main
from gradmix.training import checkpoint as checkpoints

saves, done, write = int(sys.argv.pop(1)), [], checkpoints.write_state_file
checkpoints.EVERY_SECONDS, checkpoints.SHARE = 0.0, 1e9

def write_or_die(*given):
    if len(done) == saves:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(write(*given))

checkpoints.write_state_file = write_or_die
main()
"""


def run_until_killed(*arguments, saves):
    """Run the program with a checkpoint at every event, until SIGKILL after some saves."""
    command = [sys.executable, "-c", SAVING_ALWAYS, str(saves), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("saves", "more"),
    [(3, ()), *(pytest.param(n, ("--method", m), marks=pytest.mark.slow)
       for m in ("er", "der", "mir", "foster", "memo") for n in (1, 2, 4, 8))],
)  # fmt: skip
def test_killed_and_started_again(tmp_path, saves, more, gradmix, said):
    one, two = photos(tmp_path / "one", "red", "green"), photos(tmp_path / "two", "blue", "red")
    long = (*QUICK, "--epochs", 60, "--early-stopping")
    whole, path = tmp_path / "whole", tmp_path / "my"
    for place in (whole, path):
        gradmix("learn", one, "--model", place, *long, *more)
    assert whole.read_bytes() == path.read_bytes()
    gradmix("learn", two, "--model", whole, *long, *more)
    again = ("learn", two, "--model", path, *long, *more)
    before = path.read_bytes()
    assert run_until_killed(*again, saves=saves).returncode == -9
    assert path.read_bytes() == before
    assert (tmp_path / "my.checkpoint").exists()
    gradmix(*again)
    assert "resuming" in said()
    assert path.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*checkpoint*"))


def test_stopped_after_the_file_was_written(tmp_path, monkeypatch, gradmix):
    """It is not learned twice."""
    one, path = photos(tmp_path / "one", "red", "green"), tmp_path / "my"
    command = ("learn", one, "--model", path, *QUICK, "--epochs", 2)
    write = file.write

    def stopping(*given):
        write(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file, "write", stopping)
        gradmix(*command, expect=130)
    content = path.read_bytes()
    assert (tmp_path / "my.checkpoint").exists()
    gradmix(*command)
    assert path.read_bytes() == content
    assert not (tmp_path / "my.checkpoint").exists()
    gradmix(*command)  # on purpose: more of the same
    assert len(read_state_file(path, "classifier")["history"]) == 2


def test_another_folder_after_a_stop_starts_anew(tmp_path, monkeypatch, said, gradmix):
    one, two = photos(tmp_path / "one", "red"), photos(tmp_path / "two", "green")

    def stopping(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file, "write", stopping)
        gradmix("learn", one, "--model", tmp_path / "my", *QUICK, "--epochs", 2, expect=130)
    assert "repeat the command to resume" in said()
    gradmix("learn", two, "--model", tmp_path / "my", *QUICK, "--epochs", 2)
    assert "starting again" in said()
    assert IncrementalClassifier.load(tmp_path / "my").classes_.tolist() == ["green"]


def test_a_stop_before_the_first_checkpoint_promises_no_resume(
    tmp_path, monkeypatch, said, gradmix
):
    def stopping(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradmix.classifier.inputs.read_folder", stopping)
    one = photos(tmp_path / "one", "red")
    gradmix("learn", one, "--model", tmp_path / "my", *QUICK, expect=130)
    text = said()
    assert "there is no checkpoint to resume yet" in text
    assert "repeat" not in text


@pytest.mark.parametrize("side", [64, pytest.param(1500, marks=pytest.mark.slow)])
def test_all_defaults_on_photos(tmp_path, side, gradmix):
    """A default network on photos that are larger than 32 pixels."""
    one = photos(tmp_path / "one", "red", "green", each=6, side=side)
    more = () if side == 64 else ("--epochs", "2")
    text = gradmix("learn", one, "--model", tmp_path / "my", *more)
    assert "learned green, red: 10 images" in text
    assert "0.png: " in gradmix("predict", tmp_path / "my", one / "red" / "0.png")


@pytest.mark.parametrize("command", ["learn", "predict", "inspect"])
def test_names_with_a_nul_are_clear_errors(command, tmp_path, gradmix):
    one = photos(tmp_path / "one", "red", each=1)
    arguments = {"learn": (one, "--model", "a\0b"), "predict": ("a\0b", one), "inspect": ("a\0b",)}
    with pytest.raises(GradMixError):
        gradmix(command, *arguments[command])
    with pytest.raises(GradMixError):
        gradmix("learn", "a\0b", "--model", tmp_path / "m")


def test_one_epoch_and_one_image_are_singular(tmp_path, gradmix):
    one = photos(tmp_path / "one", "red", each=1)
    text = gradmix("learn", one, "--model", tmp_path / "m", *QUICK, "--epochs", 1)
    assert "learned red: 1 image, 1 epoch\n" in text


def test_progress_without_a_terminal_is_lines(tmp_path, said, gradmix, monkeypatch):
    monkeypatch.setattr("gradmix.classifier.report.LINE_SECONDS", 0.0)
    given = photos(tmp_path / "p", "red", "blue")
    gradmix("learn", given, "--model", tmp_path / "m", *QUICK, "--epochs", 1)
    lines = said()
    assert "train epoch 1/1: loss" in lines
    assert "training finished; 16 exemplars in memory" in lines


def test_weights_and_layers_of_a_backbone(tmp_path, gradmix):
    given = photos(tmp_path / "p", "red", "blue")
    for wrong in (("--weights", tmp_path / "no.pt"), ("--finetune", "last")):
        with pytest.raises(InputError, match=wrong[0][2:]):
            gradmix("learn", given, "--model", tmp_path / "m", *QUICK, *wrong)
    assert not (tmp_path / "m").exists()


@pytest.mark.skipif(default_backbone() is None, reason="needs gradmix[photos]")
def test_no_exemplars_and_no_images(tmp_path, gradmix):
    given = photos(tmp_path / "p", "red", "blue", each=4)
    backbone = ("--network", "efficientnet-lite0", "--size", 32)
    gradmix("learn", given, "--model", tmp_path / "m", "--exemplars", 0, *backbone)
    facts = json.loads(gradmix("inspect", tmp_path / "m", "--json"))
    assert [row["exemplars"] for row in facts["classes"]] == [0, 0]
    gradmix("learn", given, "--model", tmp_path / "n", *backbone)
    gradmix("inspect", tmp_path / "n", "-o", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 100
    gradmix("learn", given, "--model", tmp_path / "o", "--no-keep-images", *backbone)
    with pytest.raises(InputError, match="keep_images=True"):
        gradmix("inspect", tmp_path / "o", "-o", tmp_path / "sheet.png")

"""The photos of the demo: pieces that share no pixels, learned in two calls."""

import importlib
import re

import numpy as np
import pytest
from PIL import Image

from gradmix.classifier.setup import default_backbone

photo_demo = importlib.import_module("gradmix.cli.demo")


def test_pieces_share_no_pixels_and_a_third_is_for_testing(tmp_path):
    pixels = np.arange(200 * 330).reshape(200, 330)  # a number for every pixel
    coded = np.stack([pixels >> 16, pixels >> 8 & 255, pixels & 255], axis=2).astype(np.uint8)
    Image.fromarray(coded).save(tmp_path / "p.png")
    train, test = photo_demo.cut(tmp_path / "p.png")
    assert (len(train), len(test)) == (10, 5)  # 3 x 5 pieces
    every = np.concatenate([train, test]).astype(np.int64)
    numbers = every[..., 0] << 16 | every[..., 1] << 8 | every[..., 2]
    assert len(np.unique(numbers)) == 15 * 64 * 64
    assert np.array_equal(train[0], coded[:64, :64])
    assert np.array_equal(test[0], coded[:64, 128:192])


@pytest.mark.skipif(default_backbone() is None, reason="the extra gradmix[photos] is not installed")
def test_six_classes_are_learned_in_two_calls(capsys, monkeypatch):
    pytest.importorskip("skimage", reason="the extra gradmix[demo] is not installed")
    monkeypatch.setitem(photo_demo.PARAMS, "image_size", 32)  # quick, and less accurate
    photo_demo.demo_photos()
    shown = capsys.readouterr().out
    assert shown.count("accuracy on test pieces") == 2
    means = [float(line.split()[-2]) for line in shown.splitlines() if " mean " in line]
    assert len(means) == 2
    assert min(means) > 0.6
    assert re.search(r"Of 60 pieces of a rocket, .*AUROC: 0\.\d", shown.replace("\n", " "))
    assert "motorcycle_right.png" in shown


def test_without_the_extra_the_demo_says_so(capsys, monkeypatch):
    monkeypatch.setattr(photo_demo, "find_spec", lambda name: None)
    photo_demo.demo_photos()
    assert "gradmix[demo]" in capsys.readouterr().err

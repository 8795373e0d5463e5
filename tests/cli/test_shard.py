"""gradmix shard: a folder becomes shards that every command reads like the folder."""

import numpy as np
import pytest
from PIL import Image

from gradmix.errors import InputError


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(8):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (420, 420, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_shards_of_a_folder(folder, tmp_path, gradmix):
    shown = gradmix("shard", folder, "--to", tmp_path / "s", "--size", "1")
    assert shown == f"4 shards saved in {tmp_path / 's'}\n"  # two photos of 0.5 MB in each
    with pytest.raises(InputError, match="exists already"):
        gradmix("shard", folder, "--to", tmp_path / "s")
    assert gradmix("shard", folder, "--to", tmp_path / "t").startswith("1 shard saved")


def test_predict_takes_no_shards(folder, tmp_path, gradmix):
    gradmix("shard", folder, "--to", tmp_path / "s")
    with pytest.raises(InputError, match="contains shards; give image files"):
        gradmix("predict", tmp_path / "model.gradmix", tmp_path / "s")

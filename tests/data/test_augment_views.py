"""Second views: what they keep, what they change, and that they are drawn from the generator."""

import pytest
import torch

from gradmix.data.augment import jitter, resized_crop, second_view
from gradmix.data.pool import Normalise

RGB = Normalise((120.0, 110.0, 100.0), (60.0, 61.0, 62.0))


@pytest.fixture
def images(seeded):
    return torch.randint(0, 256, (64, 3, 8, 8), generator=seeded(3)).float()


def test_undo_is_the_inverse(images):
    torch.testing.assert_close(RGB.undo(RGB(images)), images)
    rows = torch.randn(4, 3)
    torch.testing.assert_close(RGB.undo(RGB(rows)), rows, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(20, 1, 8, 9), (20, 3, 7, 7), (20, 12)])
def test_views_have_the_shape_of_the_samples_and_differ(shape, seeded):
    x = torch.randn(shape, generator=seeded(1))
    normalise = Normalise([50.0] * shape[1], [60.0] * shape[1])
    one, two, again = (
        second_view(x, normalise, smallest=0.2, generator=seeded(seed)) for seed in (2, 3, 2)
    )
    assert one.shape == x.shape
    assert torch.equal(one, again)
    assert all(not torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(one, x, strict=True))


def test_a_crop_of_a_ramp_is_a_flatter_ramp(seeded):
    """A part of width w of a ramp with slope 1 has slope w, within 0.2 and 1 of the area."""
    ramp = torch.arange(32.0).expand(200, 1, 32, 32)
    across = resized_crop(ramp, smallest=0.2, generator=seeded())
    down = resized_crop(ramp.mT, smallest=0.2, generator=seeded())
    width = (across[:, 0, :, 17] - across[:, 0, :, 14]).mean(1) / 3
    height = (down[:, 0, 17] - down[:, 0, 14]).mean(1) / 3
    assert bool((width * height > 0.19).all())
    assert bool((width * height < 1.001).all())
    assert float((width * height).min()) < 0.3
    assert bool((across >= 0).all())
    assert bool((across <= 31).all())


def test_a_crop_of_one_colour_has_that_colour(seeded):
    flat = torch.full((10, 3, 8, 8), 7.0)
    torch.testing.assert_close(resized_crop(flat, smallest=1.0, generator=seeded()), flat)


def test_one_of_five_images_keeps_its_colours_and_one_of_five_is_grey(seeded):
    x = torch.randint(80, 120, (2000, 3, 2, 2), generator=seeded(1)).float()
    changed = jitter(x, generator=seeded(2))
    same = (changed == x).flatten(1).all(1).float().mean()
    grey = (changed.std(dim=1) < 1e-3).flatten(1).all(1).float().mean()
    assert same == pytest.approx(0.2 * 0.8, abs=0.03)
    assert grey == pytest.approx(0.2, abs=0.03)


def test_turned_colours_keep_grey_and_brightness(seeded):
    grey = torch.full((50, 3, 2, 2), 100.0)
    changed = jitter(grey, generator=seeded())
    assert float(changed.std(dim=1).max()) < 0.1
    assert float(changed.min()) >= 60 - 0.1
    assert float(changed.max()) <= 140 + 0.1

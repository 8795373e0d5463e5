"""RandAugment's operations are Pillow's, bit for bit; draws are each sample's own."""

import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from gradmix.data.augment import OPERATIONS, RandAugment, random_affine, random_crop, random_flip
from gradmix.errors import InputError

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 7, 13), (3, 33, 17), (3, 1, 1), (1, 2, 5), (3, 9, 2)]
SIGNED = OPERATIONS[1:10]
GEOMETRIC = OPERATIONS[1:6]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(n, shape, seed=0):
    return torch.randint(256, (n, *shape), generator=generator(seed), dtype=torch.uint8)


def images(shape):
    """Random and structured: flat, two levels, low contrast, ramps, a dark digit-like blob."""
    x = random_images(14, shape)
    x[1] = 0
    x[2] = 255
    x[3] = 77
    x[4] = x[4] // 128 * 60 + 20  # two levels
    x[5] = x[5] // 5 + 100  # low contrast
    x[6] = torch.linspace(0, 255, shape[2]).to(torch.uint8)  # ramp to the right
    x[7] = torch.linspace(255, 0, shape[1]).to(torch.uint8)[:, None]  # ramp upwards
    x[8, ..., : shape[2] // 2] = 0
    x[9] = 0
    x[9, :, shape[1] // 3 :, shape[2] // 3 : 2 * shape[2] // 3 + 1] = 250
    x[10, 0] = 13  # one flat channel
    x[11] = x[11] // 64  # four levels, dark
    x[12] = torch.arange(shape[1] * shape[2]).view(shape[1:]).remainder(256).to(torch.uint8)
    return x


def to_pillow(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if len(image) == 1 else array)


def from_pillow(image):
    array = np.array(image)
    return torch.from_numpy(array[..., None] if array.ndim == 2 else array).permute(2, 0, 1)


def torchvision_strength(name, magnitude, width, height):
    """The table of torchvision's RandAugment._augmentation_space."""
    table = {
        "Shear": torch.linspace(0.0, 0.3, 31),
        "TranslateX": torch.linspace(0.0, 150.0 / 331.0 * width, 31),
        "TranslateY": torch.linspace(0.0, 150.0 / 331.0 * height, 31),
        "Rotate": torch.linspace(0.0, 30.0, 31),
        "Posterize": 8 - (torch.arange(31) / (30 / 4)).round().int(),
        "Solarize": torch.linspace(255.0, 0.0, 31),
    }
    enhance = torch.linspace(0.0, 0.9, 31)
    return table.get(name.rstrip("XY") if "Shear" in name else name, enhance)[magnitude].item()


def reference(image, name, magnitude, sign):
    """One Pillow image as torchvision's RandAugment treats it."""
    level = sign * torchvision_strength(name, magnitude, *image.size)

    def affine(*matrix):
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)

    shear = math.tan(math.radians(math.degrees(math.atan(level))))
    return {
        "Identity": lambda: image,
        "ShearX": lambda: affine(1, shear, 0, 0, 1, 0),
        "ShearY": lambda: affine(1, 0, 0, shear, 1, 0),
        "TranslateX": lambda: affine(1, 0, -int(level), 0, 1, 0),
        "TranslateY": lambda: affine(1, 0, 0, 0, 1, -int(level)),
        "Rotate": lambda: image.rotate(level, Image.Resampling.NEAREST, fillcolor=0),
        "Brightness": lambda: ImageEnhance.Brightness(image).enhance(1 + level),
        "Color": lambda: ImageEnhance.Color(image).enhance(1 + level),
        "Contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + level),
        "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + level),
        "Posterize": lambda: ImageOps.posterize(image, int(abs(level))),
        "Solarize": lambda: ImageOps.solarize(image, abs(level)),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
    }[name]()


def pillow(x, name, magnitude, sign):
    done = [from_pillow(reference(to_pillow(image), name, magnitude, sign)) for image in x]
    return torch.stack(done) if done else x


def ours(x, name, magnitude, sign=1):
    drawn = torch.full((1, len(x)), 2 * OPERATIONS.index(name) + (sign < 0))
    return RandAugment(1, magnitude).apply(x, drawn)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude", [0, 14, 30])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name, magnitude, sign):
    """Exactly, blends too: the same float32 steps and the same truncation."""
    for shape in SHAPES:
        x = images(shape)
        assert torch.equal(ours(x, name, magnitude, sign), pillow(x, name, magnitude, sign)), shape


@pytest.mark.parametrize("name", SIGNED)
def test_all_magnitudes(name):
    for shape in [(1, 28, 28), (3, 21, 34)]:
        x = random_images(1, shape)
        for magnitude in range(31):
            for sign in (1, -1):
                assert torch.equal(
                    ours(x, name, magnitude, sign), pillow(x, name, magnitude, sign)
                ), (shape, magnitude, sign)


@pytest.mark.parametrize("name", ["Posterize", "Solarize"])
def test_all_magnitudes_at_all_values(name):
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for magnitude in range(31):
        assert torch.equal(ours(x, name, magnitude), pillow(x, name, magnitude, 1)), magnitude


@pytest.mark.parametrize("name", GEOMETRIC)
def test_large_images(name):
    x = random_images(1, (1, 224, 301))
    for sign in (1, -1):
        assert torch.equal(ours(x, name, 30, sign), pillow(x, name, 30, sign))


def test_autocontrast_of_every_range():
    """Every pair of a darkest and a brightest value, with all values between them."""
    low, high = torch.triu_indices(256, 256)
    chosen = torch.randperm(len(low), generator=generator())[:500]
    low, high = low[chosen, None], high[chosen, None]
    x = torch.arange(256).clamp(low, high).to(torch.uint8).view(-1, 1, 16, 16)
    assert torch.equal(ours(x, "AutoContrast", 14), pillow(x, "AutoContrast", 14, 1))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 4),
    st.sampled_from([1, 3]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(OPERATIONS),
    st.integers(0, 30),
    st.sampled_from([1, -1]),
    st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted),
    st.integers(0, 2**32),
)
def test_any_shape_and_values(n, channels, height, width, name, magnitude, sign, values, seed):
    shape = (n, channels, height, width)
    low, high = values
    x = torch.randint(low, high + 1, shape, generator=generator(seed), dtype=torch.uint8)
    before = x.clone()
    result = ours(x, name, magnitude, sign)
    assert (result.shape, result.dtype) == (x.shape, torch.uint8)
    assert torch.equal(result, pillow(x, name, magnitude, sign))
    assert torch.equal(x, before)


# Magnitude 14, the paper's, by hand.


def test_shear_by_hand():
    x = random_images(1, (1, 32, 32))
    across = ours(x, "ShearX", 14)[0, 0]
    for y in range(32):
        shift = math.floor(0.5 + 0.14 * (y + 0.5))
        assert across[y].tolist() == x[0, 0, y, shift:].tolist() + [0] * shift
    down = ours(x.transpose(2, 3), "ShearY", 14)[0, 0]
    assert torch.equal(down, across.T)
    assert shift == 4


def test_rotate_by_hand():
    """14° counter-clockwise; a point well inside a pixel knows its source."""
    x = random_images(1, (1, 33, 33))
    turned = ours(x, "Rotate", 14)[0, 0]
    cos, sin = math.cos(math.radians(14)), math.sin(math.radians(14))
    clear = 0
    for v in range(-10, 11):
        for u in range(-10, 11):  # from the centre, v downwards
            column, line = cos * u - sin * v, sin * u + cos * v
            if max(abs(column - round(column)), abs(line - round(line))) < 0.49:
                clear += 1
                assert turned[16 + v, 16 + u] == x[0, 0, 16 + round(line), 16 + round(column)]
    assert clear > 400


@pytest.mark.parametrize(("size", "pixels"), [(28, 5), (32, 6), (64, 13)])
def test_translate_by_hand(size, pixels):
    x = random_images(2, (3, size, size + 9))  # X follows the width, Y the height
    down = ours(x, "TranslateY", 14)
    assert torch.equal(down[:, :, pixels:], x[:, :, :-pixels])
    assert not down[:, :, :pixels].any()
    x = random_images(2, (3, size + 9, size))
    left = ours(x, "TranslateX", 14, sign=-1)
    assert torch.equal(left[..., :-pixels], x[..., pixels:])
    assert not left[..., -pixels:].any()


def test_enhancements_by_hand():
    x = torch.tensor([60, 201], dtype=torch.uint8).view(1, 1, 1, 2)  # the mean is 131
    assert ours(x, "Brightness", 14).tolist() == [[[[85, 255]]]]  # 60 · 1.42 = 85.2
    assert ours(x, "Brightness", 14, -1).tolist() == [[[[34, 116]]]]  # · 0.58: 34.8, 116.58
    assert ours(x, "Contrast", 14).tolist() == [[[[30, 230]]]]  # 131 − 71 · 1.42, + 70
    assert ours(x, "Contrast", 14, -1).tolist() == [[[[89, 171]]]]  # 131 − 71 · 0.58, + 70
    colour = torch.tensor([100, 100, 200], dtype=torch.uint8).view(1, 3, 1, 1)  # grey 111
    assert ours(colour, "Color", 14).flatten().tolist() == [95, 95, 237]  # 111 + 1.42 · (c − 111)
    assert ours(colour, "Color", 14, -1).flatten().tolist() == [104, 104, 162]
    dot = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    dot[0, 0, 1, 1] = 130  # its blur is 130 · 5/13 = 50
    assert ours(dot, "Sharpness", 14)[0, 0, 1, 1] == 163  # 50 + 80 · 1.42 = 163.6
    assert ours(dot, "Sharpness", 14, -1)[0, 0, 1, 1] == 96  # 50 + 80 · 0.58 = 96.4


def test_posterize_and_solarize_by_hand():
    x = torch.tensor([0, 3, 4, 135, 136, 255], dtype=torch.uint8).view(1, 1, 1, 6)
    assert ours(x, "Posterize", 14).flatten().tolist() == [0, 0, 4, 132, 136, 252]  # six bits
    assert ours(x, "Solarize", 14).flatten().tolist() == [0, 3, 4, 135, 119, 0]  # from 136 on


def test_color_leaves_one_channel_alone():
    x = images((1, 28, 28))
    assert torch.equal(ours(x, "Color", 30), x)


# Draws.


def outcomes(image, magnitude=14):
    """The image after each operation, forwards and then backwards: (14, 2, C, H, W)."""
    x = image.expand(28, -1, -1, -1)
    done = RandAugment(1, magnitude).apply(x, torch.arange(28)[None])
    return done.view(14, 2, *image.shape)


def digest(x):
    weights = torch.randint(1, 2**40, x.shape[-3:], generator=generator(1))
    return (x * weights).sum((-3, -2, -1))


@pytest.fixture(scope="module")
def drawn():
    """Operation and sign that 5600 copies of one image went through."""
    image = random_images(1, (3, 20, 20))[0]
    known = digest(outcomes(image)).flatten()
    assert len(known.unique()) == 14 + len(SIGNED)
    x = image.expand(5600, -1, -1, -1)
    which = digest(RandAugment()(x, generator=generator(3)))[:, None] == known
    assert which.any(1).all()
    kind = which.int().argmax(1)  # the first of two when the sign plays no part
    return kind // 2, kind % 2


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def test_operations_are_drawn_uniformly(drawn):
    counts = torch.bincount(drawn[0], minlength=14).double()
    assert chi_square(counts) < 34.5  # 13 degrees of freedom, p = 0.001


def test_signs_are_fair(drawn):
    operation, negative = drawn
    for k in range(1, 10):
        signs = torch.bincount(negative[operation == k], minlength=2).double()
        assert chi_square(signs) < 10.8  # one degree of freedom, p = 0.001


def test_neighbours_draw_independently(drawn):
    pairs = torch.bincount(14 * drawn[0][:-1] + drawn[0][1:], minlength=196).double()
    assert chi_square(pairs) < 263  # 195 degrees of freedom, p = 0.001
    signed = (drawn[0] >= 1) & (drawn[0] <= 9)
    signs = drawn[1][signed]
    assert chi_square(torch.bincount(2 * signs[:-1] + signs[1:], minlength=4).double()) < 16.3


def test_two_operations_one_after_the_other():
    image = random_images(1, (3, 20, 20))[0]
    first = outcomes(image).flatten(0, 1)
    both = torch.stack([digest(outcomes(one)).flatten() for one in first])  # (28, 28)
    x = image.expand(2000, -1, -1, -1)
    found = digest(RandAugment(2)(x, generator=generator()))
    assert torch.isin(found, both).all()
    assert len(found.unique()) > 0.8 * len(both.unique())


def test_mixed_batch_is_each_sample_alone():
    x = images((3, 32, 32)).repeat(4, 1, 1, 1)
    drawn = torch.randint(28, (1, len(x)), generator=generator())
    together = RandAugment(1, 20).apply(x, drawn)
    for i in range(len(x)):
        rows = slice(i, i + 1)
        alone = RandAugment(1, 20).apply(x[rows], drawn[:, rows])
        assert torch.equal(together[rows], alone)


TRANSFORMS = [RandAugment(), RandAugment(3, 30), random_crop, random_flip]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 15, 32)])
def test_same_seed_same_bits_and_input_untouched(transform, shape):
    x = random_images(64, shape)
    before, state = x.clone(), torch.get_rng_state()
    source = generator(5)
    first, second = transform(x, generator=source), transform(x, generator=source)
    assert torch.equal(transform(x, generator=generator(5)), first)
    assert not torch.equal(first, second)
    assert first.dtype == torch.uint8
    first.zero_()  # the result is no view of the input
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_survives_pickling():
    transform = RandAugment(2, 9)
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert repr(transform) == "RandAugment(num_ops=2, magnitude=9)"


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_memory_layout_does_not_matter(transform):
    x = random_images(40, (3, 16, 12))
    expected = transform(x, generator=generator())
    for other in [x.to(memory_format=torch.channels_last), x.repeat(1, 1, 1, 2)[..., :12]]:
        assert torch.equal(transform(other, generator=generator()), expected)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("channels", [1, 3])
def test_no_pixel_is_looked_at_from_the_host(transform, channels):
    """On the meta device there are none: whatever synchronised with an accelerator would fail."""
    x = torch.empty(200, channels, 16, 12, dtype=torch.uint8, device="meta")
    result = transform(x, generator=generator())
    assert (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_empty_batch(transform):
    x = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert transform(x, generator=generator()).shape == x.shape


# Crops and flips.


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from([1, 3]),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 5),
    st.integers(0, 2**32),
)
def test_crop_is_a_slice_of_the_padded_image(n, channels, height, width, padding, seed):
    x = random_images(n, (channels, height, width), seed)
    result = random_crop(x, padding=padding, generator=generator(seed))
    padded = torch.zeros(n, channels, height + 2 * padding, width + 2 * padding).to(torch.uint8)
    padded[:, :, padding : padding + height, padding : padding + width] = x
    top, left = torch.randint(2 * padding + 1, (2, n), generator=generator(seed)).tolist()
    for i in range(n):
        window = padded[i, :, top[i] : top[i] + height, left[i] : left[i] + width]
        assert torch.equal(result[i], window)


def test_crops_are_uniform_and_each_samples_own():
    x = torch.zeros(8100, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 1  # where the dot ends up tells the shift
    where = random_crop(x, generator=generator()).flatten(1).int().argmax(1)
    assert chi_square(torch.bincount(where, minlength=81).double()) < 124.8  # 80 d.f., p = 0.001
    lines, columns = where[:-1] // 9, where[1:] % 9  # neighbours share nothing
    assert chi_square(torch.bincount(9 * lines + columns, minlength=81).double()) < 124.8


def test_crop_by_more_than_the_image():
    x = torch.full((200, 1, 2, 2), 9, dtype=torch.uint8)
    sums = random_crop(x, padding=3, generator=generator()).sum((1, 2, 3))
    assert set(sums.tolist()) == {0, 9, 18, 36}


def test_flip_mirrors_about_half():
    x = random_images(2000, (3, 2, 5))
    result = random_flip(x, generator=generator())
    mirrored = (result == x.flip(-1)).flatten(1).all(1)
    kept = (result == x).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert 900 < mirrored.sum() < 1100
    changes = (mirrored[1:] != mirrored[:-1]).sum()
    assert 900 < changes < 1100


def test_flip_by_hand():
    x = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8).expand(50, 1, 2, 3)
    found = {str(image.tolist()) for image in random_flip(x, generator=generator())}
    assert found == {"[[[1, 2, 3], [4, 5, 6]]]", "[[[3, 2, 1], [6, 5, 4]]]"}


# What cannot be used.


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("x", "named"),
    [
        (torch.zeros(2, 3, 8, 8), "float32"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "int64"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(3, 8, 8\)"),
        (torch.zeros(2, 784, dtype=torch.uint8), r"\(2, 784\)"),
        (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), r"\(2, 2, 8, 8\)"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), r"\(2, 4, 8, 8\)"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), r"\(2, 8, 8, 3\)"),
        (torch.zeros(2, 3, 0, 8, dtype=torch.uint8), r"\(2, 3, 0, 8\)"),
        (np.zeros((2, 3, 8, 8), dtype=np.uint8), "ndarray"),
    ],
)
def test_wrong_images_are_refused(transform, x, named):
    with pytest.raises(InputError, match=rf"^x .*{named}.*uint8 images \(N, C, H, W\)"):
        transform(x, generator=generator())


@pytest.mark.parametrize("magnitude", [-1, 31, 1.5, True, None])
def test_wrong_magnitude_is_refused(magnitude):
    with pytest.raises(InputError, match=rf"magnitude is {magnitude}; .* 0 to 30"):
        RandAugment(1, magnitude)


@pytest.mark.parametrize("num_ops", [0, -2, 1.0, True])
def test_wrong_num_ops_is_refused(num_ops):
    with pytest.raises(InputError, match=rf"num_ops is {num_ops}; .* 1 or more"):
        RandAugment(num_ops)


@pytest.mark.parametrize("padding", [-1, 0.5, True])
def test_wrong_padding_is_refused(padding):
    with pytest.raises(InputError, match=rf"padding is {padding}; .* 0 or more"):
        random_crop(random_images(1, (1, 4, 4)), padding=padding, generator=generator())


# --- affine maps ----------------------------------------------------------------------------------


def only(**strengths):
    none = {"degrees": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0}
    return partial(random_affine, **{**none, **strengths})


@pytest.mark.parametrize("shape", SHAPES)
def test_an_affine_map_without_strength_changes_nothing(shape):
    x = random_images(9, shape)
    assert torch.equal(only()(x, generator=generator()), x)


def test_a_rotation_by_half_a_turn_mirrors_both_axes(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.ones(shape))  # the largest
    for shape in ((1, 8, 8), (3, 6, 10)):
        x = random_images(4, shape)
        assert torch.equal(only(degrees=180.0)(x, generator=generator()), x.flip(2, 3))


def test_the_largest_shift_is_a_share_of_the_side(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.ones(shape))
    x = random_images(3, (1, 8, 20))
    moved = only(shift=0.25)(x, generator=generator())  # 2 rows and 5 columns up and to the left
    assert torch.equal(moved[:, :, :6, :15], x[:, :, 2:, 5:])
    assert not moved[:, :, 6:].any()
    assert not moved[:, :, :, 15:].any()


@pytest.mark.parametrize(
    ("strengths", "inverse"),
    [({"degrees": 30.0}, (30.0, 1.0, 0.0)), ({"scale": 0.2}, (0.0, 1.2, 0.0))],
)
def test_affine_maps_are_those_of_pillow(strengths, inverse, monkeypatch):
    """Up to rounding, away from the edges: Pillow interpolates bilinearly as well."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.ones(shape))
    x = random_images(2, (1, 24, 24))
    degrees, zoom, _ = inverse
    cos, sin = (f(math.radians(degrees)) / zoom for f in (math.cos, math.sin))
    map_ = (cos, -sin, 12 - 12 * cos + 12 * sin, sin, cos, 12 - 12 * sin - 12 * cos)
    moved = only(**strengths)(x, generator=generator())
    for ours, image in zip(moved, x, strict=True):
        kind = Image.Transform.AFFINE
        theirs = to_pillow(image).transform((24, 24), kind, map_, Image.Resampling.BILINEAR)
        inner = slice(6, 18)
        gap = ours.int() - from_pillow(theirs).int()
        assert gap[:, inner, inner].abs().max() <= 1


def test_affine_maps_draw_for_every_sample_from_the_generator_alone():
    x = random_images(1, (1, 12, 12)).repeat(20, 1, 1, 1)
    before = torch.get_rng_state()
    first, second, other = (random_affine(x, generator=generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert len(first.flatten(1).unique(dim=0)) == 20
    assert first.dtype == torch.uint8

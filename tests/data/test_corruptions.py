"""Corrupted pictures and recordings."""

from importlib.util import find_spec

import numpy as np
import pytest

from edgelearn.data.corruptions import DRAWN, KINDS, SOUNDS, corrupt, in_noise, reverberant
from edgelearn.errors import DataError


def pictures(n: int = 3, size: int = 48) -> np.ndarray:
    y, x = np.mgrid[:size, :size] / size
    waves = 0.5 + 0.3 * np.sin(2 * np.pi * (3 * x + np.arange(n)[:, None, None] * y))
    return np.round(255 * np.stack([waves, waves**2, 1 - waves], -1)).astype(np.uint8)


@pytest.mark.parametrize("kind", DRAWN)
def test_drawn_kinds_repeat_and_grow(kind):
    x = pictures()
    weak, strong = corrupt(x, kind, 1), corrupt(x, kind, 5)
    assert strong.shape == x.shape and strong.dtype == np.uint8
    assert np.array_equal(strong, corrupt(x, kind, 5))
    assert np.array_equal(strong[:1], corrupt(x[:1], kind, 5))  # a picture's draw doesn't depend on the others
    off = [np.abs(each.astype(int) - x).mean() for each in (weak, strong)]
    assert 0 < off[0] < off[1]


def test_formulas():
    x = np.full((1, 8, 8, 3), 51, np.uint8)
    assert np.array_equal(corrupt(x, "bright", 2), np.full_like(x, 102))
    assert np.array_equal(corrupt(x, "low_contrast", 5), x)
    noise = corrupt(np.full((1, 64, 64, 3), 128, np.uint8), "noise", 2)
    assert abs(noise.std() / 255 - 0.08) < 0.004


def test_bad_input_is_named():
    x = pictures()
    for arguments, words in (
        ((x, "smoke"), "There is no corruption 'smoke'"),
        ((x, "noise", 6), "severity"),
        ((x / 255, "noise"), "uint8"),
    ):
        with pytest.raises(DataError, match=words):
            corrupt(*arguments)
    if find_spec("imagecorruptions") is None:
        with pytest.raises(DataError, match=r"edgelearn\[corruptions\]"):
            corrupt(x, "fog")


@pytest.mark.skipif(find_spec("imagecorruptions") is None, reason="needs imagecorruptions")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_the_package_repeat(kind):
    x = pictures(2, 32)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    found = corrupt(x, kind, 5)
    assert found.shape == x.shape and not np.array_equal(found, x)
    assert np.array_equal(found, corrupt(x, kind, 5))
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.skipif(find_spec("imagecorruptions") is None, reason="needs imagecorruptions")
def test_a_strong_pixelation_leaves_few_pixels():
    x = pictures(2, 32)
    found = corrupt(x, "pixelate", 5)
    assert np.array_equal(found[:, ::2, ::2], found[:, 1::2, 1::2])  # 16 of 32 pixels of a side


def test_clips_in_noise_and_in_a_room():
    clip = np.sin(np.arange(4000) / 5).astype(np.float32)[None] * 0.1
    noisy = in_noise(clip, 10, rate=4000)
    assert abs(10 * np.log10(np.var(clip) / np.var(noisy - clip)) - 10) < 0.1
    click = np.zeros((1, 4000), np.float32)
    click[0, 0] = 0.5
    room = reverberant(click, 0.5, rate=4000)[0]
    power = lambda part: 10 * np.log10(np.mean(np.square(part)))  # noqa: E731
    assert abs(power(room[1200:1600]) - power(room[400:800]) + 60 * 0.2 / 0.5) < 2  # 60 dB in half a second
    assert not room[2000:].any() or np.abs(room[2000:]).max() < 1e-6
    for change in SOUNDS.values():
        weak, strong, again = (change(clip, severity, 3) for severity in (1, 5, 5))
        assert np.array_equal(strong, again) and not np.allclose(weak, strong) and strong.shape == clip.shape
    with pytest.raises(DataError, match="more than 0 seconds"):
        reverberant(click, 0)

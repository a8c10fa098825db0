"""All threads together decode in bounded memory."""

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from edgelearn.data import files, pictures
from edgelearn.data.files import DecodingLimit, each
from edgelearn.errors import DataError


@pytest.fixture
def small(monkeypatch):
    """A limit of 1 MB for pictures."""
    limit = DecodingLimit(1_000_000)
    monkeypatch.setattr(pictures, "decoding", limit)
    return limit


def encoded(size, kind, mode="RGB", **options):
    y, x = np.mgrid[0:size, 0:size]
    pixels = np.stack([x % 256, y % 256, (x + y) % 256, x * 0 + 128], 2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., : len(mode)]).save(buffer, kind, **options)
    return buffer.getvalue()


def test_threads_wait_for_each_other():
    limit, held, most, lock = DecodingLimit(10), 0, 0, threading.Lock()

    def work(nbytes):
        nonlocal held, most
        with limit.hold(nbytes, "x"):
            with lock:
                held, most = held + nbytes, max(most, held + nbytes)
            time.sleep(0.002)
            with lock:
                held -= nbytes

    each(work, [6, 5, 4, 10, 1, 1, 1, 7] * 4)
    assert held == 0 and 0 < most <= 10
    with pytest.raises(DataError, match="x"), limit.hold(11, "x"):
        pass


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_that_takes_too_much_is_refused_before_it_is_decoded(small, mode):
    assert pictures.decode(encoded(150, "PNG", mode), 32, "p").shape == (32, 32, 3)
    with pytest.raises(DataError, match=r"^huge\.png .*1\.00 MB"):
        pictures.decode(encoded(400, "PNG", mode), 32, "huge.png")
    assert pictures.decode(encoded(150, "PNG"), 32, "p").shape == (32, 32, 3)


def test_a_jpeg_is_decoded_at_a_smaller_scale(small):
    assert pictures.decode(encoded(1600, "JPEG"), 32, "p").shape == (32, 32, 3)
    with pytest.raises(DataError, match=r"^p "):  # it would hold all coefficients
        pictures.decode(encoded(1600, "JPEG", progressive=True), 32, "p")


def test_sound_that_grows_by_resampling_is_refused(monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    from edgelearn.data import audio as sounds

    monkeypatch.setattr(sounds, "decoding", DecodingLimit(1_000_000))
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(100_000), 4000, format="FLAC")
    assert sounds.read(buffer.getvalue(), "s")[0].shape == (100_000,)
    with pytest.raises(DataError, match=r"^s .*4\.00 MB"):
        sounds.decode(buffer.getvalue(), "s")


def test_the_limit_admits_what_the_numbers_of_pixels_and_samples_do():
    assert files.LIMIT >= 8 * pictures.MAX_PIXELS

import threading
import time

import numpy as np
import pytest

from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.errors import ShapeError


def numbered(n, draw=None):
    """Pictures filled with their own number."""
    items = [lambda size, i=i: np.full((size, size, 3), i, np.uint8) for i in range(n)]
    return ImageDataset("numbered", "drawn", "Numbers.", ("a",), np.zeros(n, int), draw or items)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-data")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert decoders() == []


def test_pictures_come_in_the_order_asked_for():
    images = load_images(numbered(20), np.array([7, 3, 3, 19]), 6)
    assert images.shape == (4, 6, 6, 3) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [7, 3, 3, 19]


def test_no_pictures():
    assert load_images(numbered(2), np.array([], int), 6).shape == (0, 6, 6, 3)


def test_out_receives_the_pictures():
    out = np.zeros((2, 4, 4, 3), np.uint8)
    assert load_images(numbered(5), np.array([4, 2]), 4, out=out) is out
    assert out[:, 0, 0, 0].tolist() == [4, 2]
    with pytest.raises(ShapeError, match=r"\(1, 4, 4, 3\).*\(2, 4, 4, 3\)"):
        load_images(numbered(5), np.array([1]), 4, out=out)


def test_an_interrupt_while_waiting_stops_everything(monkeypatch):
    from concurrent.futures import Future

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    slow = [lambda size: (time.sleep(0.02), np.zeros((size, size, 3), np.uint8))[1]] * 600
    monkeypatch.setattr(Future, "result", interrupted)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        load_images(numbered(600, slow), np.arange(600), 4)
    assert decoders() == [] and time.perf_counter() - began < 2

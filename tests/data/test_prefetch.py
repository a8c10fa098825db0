import threading
import time

import numpy as np
import pytest

from edgelearn.data.dataset import ImageDataset
from edgelearn.data.prefetch import load_images, prefetch
from edgelearn.errors import DataError, ShapeError


def numbered(n, draw=None):
    """Pictures filled with their own number."""
    items = [lambda size, i=i: np.full((size, size, 3), i, np.uint8) for i in range(n)]
    return ImageDataset("numbered", "drawn", "Numbers.", ("a",), np.zeros(n, int), draw or items)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-decode")]


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
    with pytest.raises(ShapeError, match=r"out must be uint8 of shape"):
        load_images(numbered(5), np.array([1]), 4, out=out)


def test_batches_arrive_in_order_and_do_not_share_memory():
    batches = [np.array([0, 1, 2]), np.array([5]), np.array([9, 8])]
    result = list(prefetch(iter(batches), numbered(10), 4))
    assert [indices.tolist() for indices, _ in result] == [batch.tolist() for batch in batches]
    assert [images[:, 0, 0, 0].tolist() for _, images in result] == [batch.tolist() for batch in batches]
    assert list(prefetch([], numbered(1), 4)) == []


def test_the_next_batch_is_decoded_while_this_one_is_used():
    second = threading.Event()
    draw = [
        lambda size: np.zeros((size, size, 3), np.uint8),
        lambda size: (second.set(), np.zeros((size, size, 3), np.uint8))[1],
    ]
    batches = prefetch([np.array([0]), np.array([1])], numbered(2, draw), 4)
    next(batches)
    assert second.wait(5)
    batches.close()


def test_an_error_comes_with_its_own_batch():
    dataset = numbered(3, [lambda size: np.zeros((size, size, 3), np.uint8), b"broken", b"broken"])
    batches = prefetch([np.array([0]), np.array([1])], dataset, 4)
    assert next(batches)[0].tolist() == [0]
    with pytest.raises(DataError, match=r"Picture 1"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(DataError, match=r"Picture 2"):
        load_images(dataset, np.array([0, 2]), 4)


def test_closing_drops_what_has_not_begun():
    drawn = []

    def slow(size):
        drawn.append(1)
        time.sleep(0.02)
        return np.zeros((size, size, 3), np.uint8)

    batches = prefetch([np.array([0]), np.arange(1, 500)], numbered(500, [slow] * 500), 4)
    next(batches)
    began = time.perf_counter()
    batches.close()
    assert time.perf_counter() - began < 1
    assert len(drawn) < 50


def test_an_interrupt_stops_everything():
    slow = [lambda size: (time.sleep(0.02), np.zeros((size, size, 3), np.uint8))[1]] * 600
    began = time.perf_counter()

    def interrupted_loop():
        for _ in prefetch([np.arange(3), np.arange(3, 600)], numbered(600, slow), 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_loop()
    assert decoders() == [] and time.perf_counter() - began < 2


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

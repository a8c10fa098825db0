"""Examples on their way to a device.

Pages in memory and in files; full disks and folders that can't be written.

Arrays in pinned memory, on every OpenCL device.
"""

import gc
import os
import resource

import numpy as np
import pyopencl as cl
import pytest

import edgelearn as el
from edgelearn.compile import Request, make_plan
from edgelearn.errors import PagingError
from edgelearn.graph import Network
from edgelearn.ops import Conv2D, pack
from edgelearn.runtime import Context, Pages, Session, list_devices, pages
from edgelearn.runtime.context import LEAST, PinnedArrays
from edgelearn.runtime.pages import FeatureCache


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.id)
def test_neighbouring_examples_of_an_array_are_not_copied_on_the_host(device, tmp_path):
    network = Network("one", (4, 5, 3))
    network.add("conv", Conv2D(2, 3))
    session = Session(make_plan(Request(network, 4, 4, loss=None), device), Context(device))
    x = np.random.default_rng(0).standard_normal((9, 4, 5, 3)).astype(np.float32)
    for indices in ([2, 3, 4], [2, 4, 3], [5], [0, 2], range(9)):
        found = session.fetch(x, np.array(indices))
        assert np.array_equal(found.reshape(-1, 4, 5, 3), x[np.array(indices)])
        neighbours = list(indices) == list(range(indices[0], indices[-1] + 1))
        assert np.shares_memory(found, x) == (neighbours and not device.is_gpu)
    path = tmp_path / "x"
    x.tofile(path)
    file = np.memmap(path, np.float32, shape=x.shape)
    found = session.fetch(file, np.arange(3))
    assert np.array_equal(found.reshape(-1, 4, 5, 3), x[:3]) and not np.shares_memory(found, file)
    session.close()


@pytest.fixture(params=("memory", "file", "file, written out"))
def folder(request, tmp_path, monkeypatch):
    if request.param == "file, written out":
        monkeypatch.delattr("os.posix_fallocate")
    return None if request.param == "memory" else str(tmp_path)


def test_pages_hold_what_is_written(folder, tmp_path):
    held = Pages(3_000_001, folder)
    bits = np.random.default_rng(0).integers(0, 256, held.nbytes, np.uint8)
    held.words[:] = bits
    assert np.array_equal(held.words, bits) and held.words.nbytes == 3_000_001
    assert not list(tmp_path.iterdir()), "a file has no name"


@pytest.mark.usefixtures("folder")
def test_a_file_has_its_room_on_the_disk(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        pages._reserve(file, 1 << 20)
        status = os.fstat(file.fileno())
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20


def test_a_full_disk(folder, tmp_path):
    """As far as a process may be told that a file has no more room."""
    if folder is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(PagingError, match=r"2,000,000 bytes.*File too large"):
            Pages(2_000_000, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_folders_that_are_none(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder, why in ((tmp_path / "missing", "No such file or directory"), (file, "Not a directory")):
        with pytest.raises(PagingError, match=why):
            Pages(100, str(folder))


def test_more_than_the_host_has():
    with pytest.raises(PagingError, match=r"1,000,000,000,000,000,000 bytes"):
        Pages(10**18)


WORDS = LEAST // 4


@pytest.fixture(params=list_devices(), ids=lambda device: device.id.replace(" ", "-"))
def pinned(request):
    context = Context(request.param)
    return PinnedArrays(context.cl_context, context.queue, limit=3 * LEAST)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_every_view_is_gone(pinned):
    first = pinned.empty((2, WORDS // 2))
    first[:] = 7
    view, place = first.reshape(-1)[5:], address(first)
    del first
    gc.collect()
    second = pinned.empty((WORDS,))
    second[:] = 8
    assert address(second) != place and (view == 7).all() and pinned.nbytes == 2 * LEAST
    del view
    gc.collect()
    third = pinned.empty((WORDS,), np.int32)
    assert address(third) == place and third.dtype == np.int32 and pinned.nbytes == 2 * LEAST
    assert (second == 8).all()


def test_small_arrays_and_those_beyond_the_limit_lie_elsewhere(pinned):
    small = pinned.empty((3, 4))
    assert small.shape == (3, 4) and small.dtype == np.float32 and pinned.nbytes == 0
    held = [pinned.empty((WORDS,)) for _ in range(3)]
    beyond = pinned.empty((WORDS,))
    beyond[:], held[0][:] = 1, 2
    assert pinned.nbytes == 3 * LEAST and beyond.base is None
    assert (beyond == 1).all() and (held[0] == 2).all()


def test_free_blocks_go_back_to_the_driver(pinned):
    kept, given_back = pinned.empty((WORDS,)), pinned.empty((WORDS,))
    kept[:] = 5
    del given_back
    pinned.release()
    assert pinned.nbytes == LEAST and (kept == 5).all()
    del kept
    larger = pinned.empty((3 * WORDS,))  # needs the room of the free one, which is too small
    assert pinned.nbytes == 3 * LEAST and larger.base is not None


@pytest.mark.parametrize("fails", ["Buffer", "enqueue_map_buffer"])
def test_ordinary_memory_takes_the_place_of_what_the_driver_lacks(pinned, fails, monkeypatch, caplog):
    kept = pinned.empty((WORDS,))

    def fail(*arguments, **options):
        raise cl.MemoryError("out of host memory", -6)

    with monkeypatch.context() as patch:
        patch.setattr(cl, fails, fail)
        found = [pinned.empty((WORDS,)) for _ in range(2)]
    for number, array in enumerate(found):
        array[:] = number
    assert pinned.nbytes == LEAST, "what failed isn't counted"
    (record,) = caplog.records
    assert "pinned memory" in record.message and "out of host memory" in record.message
    place = address(kept)
    del kept
    assert address(pinned.empty((WORDS,))) == place, "what it has is used on"


def test_a_closed_session_gives_pinned_memory_back():
    context = Context(list_devices()[0])
    net = el.Network("one", (WORDS,))
    net.add("dense", el.ops.Dense(1))
    session = Session(make_plan(Request(net, loss=None), context.device), context)
    session._empty = context.pinned.empty
    session._empty((WORDS,))
    assert context.pinned.nbytes == LEAST
    session.close()
    assert context.pinned.nbytes == 0


def test_arrays_survive_their_maker(pinned):
    array = pinned.empty((WORDS,))
    array[:] = 3
    context = Context(list_devices()[0])
    lost = PinnedArrays(context.cl_context, context.queue).empty((WORDS,))
    lost[:] = 4
    del context
    gc.collect()
    assert (lost == 4).all() and (array == 3).all()


@pytest.mark.parametrize(("channels", "block"), [(16, 16), (33, 16), (3, 3), (5, 16)])
def test_packing_into_an_array_gives_the_same(pinned, channels, block):
    x = np.random.default_rng(0).standard_normal((9, 7, 7, channels)).astype(np.float32)
    packed = pack(x, block, empty=lambda shape, dtype: np.full(shape, np.nan, dtype))
    assert np.array_equal(packed, pack(x, block)) and not np.shares_memory(packed, x)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_features_are_taken_into_an_array(dtype):
    cache = FeatureCache((2, 3, 20), 5, dtype)
    cache.words[...] = np.random.default_rng(0).standard_normal(cache.words.shape)
    indices = np.array([4, 0, -1])

    def empty(shape, dtype):
        return np.full(shape, np.nan, dtype)

    taken = cache.device_layout(indices, empty)
    with pytest.raises(IndexError):
        cache.device_layout(np.array([5]), empty)
    assert np.array_equal(taken, cache.device_layout(indices)) and taken.dtype == np.float32
    assert np.array_equal(taken, np.take(cache.words, indices, axis=1).astype(np.float32).reshape(taken.shape))


def test_a_session_trains_the_same_from_pinned_memory(pinned):
    """As on a GPU, where sessions pack into such arrays."""

    net = el.Network("small", (16, 16, 16))
    net.add("conv", el.ops.Conv2D(16, 3))
    net.add("pool", el.ops.GlobalAveragePooling2D())
    net.add("dense", el.ops.Dense(4))
    context = Context(list_devices()[0])
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((8, 16, 16, 16)).astype(np.float32) for _ in range(5)]
    results = []
    for empty in (None, PinnedArrays(context.cl_context, context.queue).empty):
        session = Session(make_plan(Request(net, 8, 8, el.SGD(0.1)), context.device), context)
        session.load(net.initialize(0))
        session._empty = empty
        for step, x in enumerate(batches, 1):
            session.train([(session.pack(x), np.arange(8, dtype=np.int32) % 4)], 8, 0.1, step)
        results.append(session.weights())
        session.close()
    plain, from_pinned = results
    assert all(np.array_equal(plain[name], from_pinned[name]) for name in plain)

import time

import pytest

from edgelearn.launch import Buffer, Launch, Out, Role
from edgelearn.runtime import Context, Kernels, Runner, list_devices

DEVICES = list_devices()


@pytest.fixture(params=DEVICES, ids=[device.id for device in DEVICES])
def device(request):
    return request.param


def enqueue(context: Context) -> Launch:
    """The multiply-adds of the self-test, twice."""
    buffer = Buffer("result", 64 * 64, Role.TEMPORARY)
    memory = context.allocate(buffer.nbytes, buffer.name)
    launch = Launch("self_test.cl", "multiply_add", (("CHAINS", 12),), (64,), 1, (Out(buffer), 4096))
    Runner(context, Kernels(context), [launch, launch], lambda _: (memory.handle, 0)).enqueue()
    context.finish()
    return launch


def test_times_of_launches(device):
    context = Context(device, profiling=True)
    enqueue(context)  # compiles
    context.take_times()
    begin = time.perf_counter()
    launch = enqueue(context)
    seconds = time.perf_counter() - begin
    (first, start, end), (second, later, last) = context.take_times()
    assert first is second is launch
    assert start < end <= later < last
    assert (last - start) * 1e-9 < seconds
    assert context.take_times() == []


def test_no_times_without_profiling(device):
    context = Context(device)
    enqueue(context)
    assert context.take_times() == []

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from edgelearn.launch import Buffer, Launch, Out, Role
from edgelearn.runtime import Context, Kernels, Runner, list_devices
from edgelearn.runtime.kernels import build, without_event

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


def test_programs_in_use_are_shared(device, monkeypatch):
    """By kernels of contexts of their own, which open when they are first used."""
    from edgelearn.runtime import kernels

    built, compile_new = [], kernels.build

    def count(*arguments):
        built.append(arguments)
        return compile_new(*arguments)

    monkeypatch.setattr(kernels, "build", count)
    launch = Launch("self_test.cl", "multiply_add", (("CHAINS", 2),), (64,), 1, (Out(Buffer("x", 64, Role.TEMPORARY)),))
    first, second = (Kernels(Context(device)) for _ in range(2))
    assert "cl_context" not in vars(first.context)
    first.compile([launch])
    second.compile([launch])
    assert len(built) == 1 and first.kernel(launch) is not second.kernel(launch)


ADD = "kernel void add(global float *x) { x[get_global_id(1) * get_global_size(0) + get_global_id(0)] += 1; }"


@pytest.fixture
def added(device):
    """A context, a kernel that adds one to the numbers of an array, and their buffer."""
    import pyopencl as cl

    context = Context(device)
    kernel = build(context, ADD).add
    buffer = cl.Buffer(context.cl_context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(64, np.float32))
    kernel.set_args(buffer)
    return context, kernel, buffer


@pytest.mark.skipif(sys.platform == "win32", reason="PyOpenCL's library doesn't tell there where OpenCL is.")
def test_without_event(added):
    context, kernel, buffer = added
    enqueue = without_event(context.queue, kernel, (16, 4), (4, 1))
    assert enqueue
    assert [enqueue() for _ in range(3)] == [0, 0, 0]
    assert (context.read(buffer, np.empty(64, np.float32)) == 3).all()
    refused = without_event(context.queue, kernel, (1 << 40, 1), (1 << 40, 1))
    assert refused
    assert refused() < 0
    assert (context.read(buffer, np.empty(64, np.float32)) == 3).all()


def test_a_refused_launch_is_named(device, monkeypatch):
    import pyopencl as cl

    context, buffer = Context(device), Buffer("result", 64 * 64, Role.TEMPORARY)
    memory, kernels = context.allocate(buffer.nbytes, buffer.name), Kernels(context)
    launch = Launch("self_test.cl", "multiply_add", (("CHAINS", 12),), (64,), 1, (Out(buffer), 4096))
    kernel = kernels.kernel(launch)
    monkeypatch.setattr(kernels, "kernel", lambda _: kernel)
    runner = Runner(context, kernels, [replace(launch, group=1 << 40)], lambda _: (memory.handle, 0))
    with pytest.raises(cl.Error, match="INVALID_WORK_GROUP_SIZE"):
        runner.enqueue()

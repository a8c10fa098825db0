"""A one-second test that a device compiles and computes correctly, with its speed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from edgelearn.device import Device
from edgelearn.errors import EdgelearnError
from edgelearn.launch.buffers import Buffer, Role
from edgelearn.launch.launch import Access, In, Launch, Out

from .context import Context
from .kernels import Kernels
from .runner import Runner

BLOCKS = 1 << 18  # of 16 floats: 16 MiB an array
CHAINS, ROUNDS = 12, 4096
REPEATS = 16  # launches in a row, to hide the latency of the host


@dataclass(frozen=True)
class SelfTest:
    """Outcome of a self-test.

    Arguments:
    - `passed`: True if two kernels compiled and computed what NumPy does.
    - `problem`: a sentence on what went wrong (default "").
    - `bandwidth`: bytes/s of a triad.
    - `flops`: FLOP/s of multiply-adds.
    - `seconds`: time taken.
    """

    passed: bool
    problem: str = ""
    bandwidth: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0


def self_test(device: Device, seconds: float = 1.0) -> SelfTest:
    """Compile two small kernels, compare their results with NumPy, and time them for about `seconds`."""
    import pyopencl as cl

    start = time.perf_counter()
    try:
        bandwidth, flops = _measure(device, seconds)
    except (cl.Error, EdgelearnError, ArithmeticError) as error:
        return SelfTest(False, str(error).strip().splitlines()[0], seconds=time.perf_counter() - start)
    return SelfTest(True, "", bandwidth, flops, time.perf_counter() - start)


def kernel(device: Device, name: str, items: int, *arguments: Access | int) -> Launch:
    """A launch of a self-test kernel with `items` blocks of 16 floats in its grid."""
    lanes, group = (4, 64) if device.is_gpu else (16, 1)
    macros = (("CHAINS", CHAINS), ("VECTOR_WIDTH", lanes))
    return Launch("self_test.cl", name, macros, (items * 16 // lanes,), group, arguments)


def _measure(device: Device, seconds: float) -> tuple[float, float]:
    """Return (bytes/s, FLOP/s). Raises ArithmeticError for a wrong result."""
    context = Context(device)
    kernels = Kernels(context)
    a, b, c = (Buffer(name, BLOCKS * 64, Role.TEMPORARY) for name in "abc")
    memory = {buffer: context.allocate(buffer.nbytes, buffer.name) for buffer in (a, b, c)}
    values = np.random.default_rng(0).standard_normal((2, BLOCKS * 16), dtype=np.float32)
    for buffer, array in zip((a, b), values, strict=True):
        context.write(memory[buffer].handle, array)
    count = 1 if device.is_gpu else 1024
    items = BLOCKS // count if device.is_gpu else 8 * device.compute_units

    def check(launch: Launch, expected: np.ndarray, what: str) -> float:
        runner = Runner(context, kernels, [launch] * REPEATS, lambda buffer: (memory[buffer].handle, 0))
        runner.enqueue()
        found = context.read(memory[c].handle, np.empty(expected.size, np.float32))
        if not np.allclose(found, expected, rtol=1e-5, atol=1e-5):
            raise ArithmeticError(f"wrong result of {what}")
        return _fastest(context, runner, seconds / 2) / REPEATS

    triad = kernel(device, "triad", BLOCKS // count, In(a), In(b), Out(c), BLOCKS, count)
    chains = kernel(device, "multiply_add", items, Out(c), ROUNDS)
    bandwidth = 3 * 64 * BLOCKS / check(triad, values[0] + 3 * values[1], "a + 3 b")
    flops = items * ROUNDS * CHAINS * 16 * 2 / check(chains, np.full(items * 16, CHAINS, np.float32), "x / 2 + 1 / 2")
    return bandwidth, flops


def _fastest(context: Context, runner: Runner, seconds: float) -> float:
    best, stop = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        runner.enqueue()
        context.finish()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > stop:
            return best

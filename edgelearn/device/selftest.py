"""A one-second check that a device compiles, computes right, and how fast."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from .build import build
from .devices import Device

SOURCE = """
__kernel void triad(__global const float *a, __global const float *b, __global float *c, const float s) {
  const size_t i = get_global_id(0);
  c[i] = a[i] + s * b[i];
}
__kernel void multiply_add(__global float *c, const int rounds) {
  const size_t i = get_global_id(0);
  float16 x = (float16)(c[i]), y = x + 1.0f, z = x + 2.0f, w = x + 3.0f;
  for (int r = 0; r < rounds; r++) { x = x * 0.5f + 1.0f; y = y * 0.5f + 1.0f; z = z * 0.5f + 1.0f; w = w * 0.5f + 1.0f; }
  x += y + z + w;
  c[i] = x.s0 + x.s7 + x.sf;
}
"""


@dataclass(frozen=True)
class SelfTest:
    """Outcome: `passed`, a sentence on what went wrong, bytes/s of a triad, FLOP/s of multiply-adds, seconds taken."""

    passed: bool
    problem: str = ""
    bandwidth: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0


def self_test(device: Device, seconds: float = 1.0) -> SelfTest:
    """Compile and run two small kernels, compare with NumPy, and time them for about `seconds` after compiling."""
    import pyopencl as cl

    start = time.perf_counter()
    try:
        context = cl.Context([device.handle])
        queue = cl.CommandQueue(context)
        program = build(context, SOURCE)
        n = 1 << 22
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
        flags = cl.mem_flags
        on_device = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=v) for v in (a, b, a)]
        triad, multiply_add = cl.Kernel(program, "triad"), cl.Kernel(program, "multiply_add")
        triad.set_args(*on_device, np.float32(3.0))
        cl.enqueue_nd_range_kernel(queue, triad, (n,), None)
        result = np.empty_like(a)
        cl.enqueue_copy(queue, result, on_device[2], is_blocking=True)
        if not np.allclose(result, a + np.float32(3.0) * b, rtol=1e-6, atol=1e-6):
            return SelfTest(False, "a + 3 b came out wrong", seconds=time.perf_counter() - start)
        bandwidth = 3 * 4 * n / _fastest(cl, queue, triad, n, seconds / 2)
        items, rounds = 4096 * max(1, device.compute_units), 4096
        multiply_add.set_args(on_device[2], np.int32(rounds))
        flops = items * rounds * 16 * 4 * 2 / _fastest(cl, queue, multiply_add, items, seconds / 2)
    except (cl.Error, RuntimeError) as error:
        return SelfTest(False, str(error).strip().splitlines()[0], seconds=time.perf_counter() - start)
    return SelfTest(True, "", bandwidth, flops, time.perf_counter() - start)


def _fastest(cl, queue, kernel, items: int, seconds: float) -> float:
    best, stop = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        cl.enqueue_nd_range_kernel(queue, kernel, (items,), None)
        queue.finish()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > stop:
            return best

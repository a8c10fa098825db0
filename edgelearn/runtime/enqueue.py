"""Enqueue kernels without events. PyOpenCL asks for one with each launch, which takes NVIDIA's driver a microsecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CDLL, byref, c_size_t, c_uint, c_void_p
from functools import cache, partial
from typing import Any


def without_event(queue: Any, kernel: Any, grid: Sequence[int], local: Sequence[int]) -> Callable[[], int] | None:
    """Return a function that enqueues a kernel and returns OpenCL's error code, 0 if there is none; or None where
    PyOpenCL's library doesn't tell where OpenCL is (Windows).

    Arguments:
    - `queue`, `kernel`: a cl.CommandQueue, and a cl.Kernel whose arguments are set. The caller keeps both.
    - `grid`, `local`: work-items, and those of a work-group, in each dimension.
    """
    if (function := _function()) is None:
        return None
    sizes = [byref((c_size_t * len(size))(*size)) for size in (grid, local)]
    handles = c_void_p(queue.int_ptr), c_void_p(kernel.int_ptr)
    return partial(function, *handles, c_uint(len(grid)), None, *sizes, c_uint(0), None, None)


@cache
def _function() -> Any:
    """OpenCL's clEnqueueNDRangeKernel, looked for in PyOpenCL's own library and those that it needs."""
    from pyopencl import _cl

    try:
        return CDLL(_cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None

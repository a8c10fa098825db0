"""Compile OpenCL C."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any


def build(cl_context: Any, source: str, options: Sequence[str] = ()) -> Any:
    """A built cl.Program. Raises pyopencl.Error with the driver's log; its remarks on programs that did compile are
    not shown."""
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return cl.Program(cl_context, source).build(list(options))

"""Buffers as a plan sees them: a name, a size and a role, before any memory exists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np


class Role(Enum):
    """The purpose of a buffer, which decides how long it lives."""

    PARAMETER = "parameters"  # trained: lives as long as the plan
    CONSTANT = "constants"  # frozen weights and statistics
    STATISTICS = "moving statistics"  # updated by training
    MOVING = "moving statistics of a step"  # until the step is known to be finite
    GRADIENT = "gradients"  # summed over a mini-batch
    PARTIAL = "partial sums of gradients"  # accumulated over a mini-batch, added up at its end
    CHECK = "checks of gradients"  # for NaN and infinity
    OPTIMIZER = "optimizer state"
    PREPARED = "prepared weights"  # derived from parameters once a mini-batch
    RANGE = "ranges of quantized tensors"  # updated by training
    FOUND = "ranges found in a step"  # partial results
    INPUT = "inputs"  # written by the host
    CONTROL = "counters"  # a few numbers between host and device
    PAGED = "paged activations"  # outside the device
    TEMPORARY = "activations and workspace"  # shares one arena; lives from its first write to its last read


def words_of(dtype: str) -> np.dtype:
    """NumPy's type of values in memory; it has none for bfloat16, whose words are 16 bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


@dataclass(eq=False)
class Buffer:
    """Memory that launches read and write, before it has a place.

    Arguments:
    - `name`: for tables and errors.
    - `nbytes`: its size.
    - `role`: how long it lives, and which memory it shares.
    - `layer`: name of the layer it belongs to (default "": none).
    - `dtype`: of its values (default "float32").
    """

    name: str
    nbytes: int
    role: Role
    layer: str = ""
    dtype: str = "float32"

    def __repr__(self) -> str:
        return f"<{self.role.name.lower()} {self.name}: {self.nbytes:,} bytes>"

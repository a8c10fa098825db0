"""PTX, the assembly that NVIDIA's OpenCL compiler returns as a binary: use instructions that it has no target for.

Kernels write such instructions as comments (kernels/include/warpgroups.h). Once the compiler has turned their operands
into registers, the marks are removed, and the text names the target that has the instructions.
"""

from __future__ import annotations

import re

RULE = (  # what is replaced, in order; part of the names of cached programs
    (rb"(?m)^\.target sm_90\b", b".target sm_90a"),
    (rb"//sm_90a: ", b""),
)


def for_sm_90a(ptx: bytes) -> bytes:
    """`ptx` with the instructions of sm_90a that it holds as comments."""
    for pattern, text in RULE:
        ptx = re.sub(pattern, text, ptx)
    return ptx

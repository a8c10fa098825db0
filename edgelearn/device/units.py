"""The instructions that multiply small numbers faster than float32, as data.

A unit is chosen by what a device was found to compute, never by its name: `runtime/units.py` compiles and runs each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """One way to multiply small numbers.

    Arguments:
    - `name`: what users see, and the macro UNIT of the kernels that use it.
    - `types`: what it multiplies: "int8", or compute types (see ops/compute.py).
    - `kinds`: kinds of devices that may have it: "cpu", "gpu", "accelerator".
    - `probe`: the kernel in kernels/units.cl that multiplies with it.
    - `extension`: the OpenCL extension that it takes (default none).
    """

    name: str
    types: tuple[str, ...]
    kinds: tuple[str, ...]
    probe: str
    extension: str = ""


QUADS = "add_quads_of_blocks"  # see kernels/include/quads.h
TILES = "add_products_of_tiles"  # see kernels/include/matrix_units.h
WARPGROUPS = "add_products_of_warpgroups"  # see kernels/include/warpgroups.h

UNITS = (  # the fastest first
    Unit("WGMMA", ("bf16", "fp16", "tf32"), ("gpu",), WARPGROUPS),
    Unit("MMA", ("bf16", "fp16", "tf32", "int8"), ("gpu",), TILES),
    Unit("VNNI512", ("int8",), ("cpu",), QUADS),
    Unit("AVX512BW", ("int8",), ("cpu",), QUADS),
    Unit("AVX2", ("int8",), ("cpu",), QUADS),
    Unit("INTEGER_DOT", ("int8",), ("cpu", "gpu", "accelerator"), QUADS, "cl_khr_integer_dot_product"),
    Unit("QCOM_DOT", ("int8",), ("gpu",), QUADS, "cl_qcom_dot_product8"),
    # Plain C in place of matrix units, for tests: no device is found to have it
    Unit("PLAIN_MMA", (), (), TILES),
    Unit("PLAIN_WGMMA", ("bf16", "fp16", "tf32"), (), WARPGROUPS),
)


def first_of(found: tuple[str, ...], dtype: str) -> str:
    """The fastest unit of those `found` that multiplies `dtype`; "" if there is none."""
    return next((unit.name for unit in UNITS if unit.name in found and dtype in unit.types), "")


def with_probe(probe: str) -> tuple[str, ...]:
    """The units that `probe` tests."""
    return tuple(unit.name for unit in UNITS if unit.probe == probe)


def first_with(probe: str, found: tuple[str, ...]) -> str:
    """The fastest unit of those `found` that `probe` tests; "" if there is none."""
    return next((name for name in with_probe(probe) if name in found), "")

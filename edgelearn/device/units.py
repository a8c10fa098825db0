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
    - `int8_step`: time of a training step of ResNet-18 in int8 over that in float32, as measured where it is the
      fastest unit (default None: not measured; see docs/results/precision.md).
    """

    name: str
    types: tuple[str, ...]
    kinds: tuple[str, ...]
    probe: str
    extension: str = ""
    int8_step: float | None = None


QUADS = "add_quads_of_blocks"  # see kernels/include/quads.h
TILES = "add_products_of_tiles"  # see kernels/include/matrix_units.h
WARPGROUPS = "add_products_of_warpgroups"  # see kernels/include/warpgroups.h

UNITS = (  # the fastest first
    Unit("WGMMA", ("bf16", "fp16", "tf32"), ("gpu",), WARPGROUPS),
    Unit("MMA", ("bf16", "fp16", "tf32", "int8"), ("gpu",), TILES, int8_step=0.37),
    Unit("VNNI512", ("int8",), ("cpu",), QUADS, int8_step=0.56),
    Unit("AVX512BW", ("int8",), ("cpu",), QUADS, int8_step=1.19),
    Unit("AVX2", ("int8",), ("cpu",), QUADS, int8_step=1.22),
    Unit("INTEGER_DOT", ("int8",), ("cpu", "gpu", "accelerator"), QUADS, "cl_khr_integer_dot_product"),
    Unit("QCOM_DOT", ("int8",), ("gpu",), QUADS, "cl_qcom_dot_product8"),
    # Plain C in place of matrix units, for tests: no device is found to have it
    Unit("PLAIN_MMA", (), (), TILES),
    Unit("PLAIN_WGMMA", ("bf16", "fp16", "tf32"), (), WARPGROUPS),
)


def first_of(found: tuple[str, ...], dtype: str) -> str:
    """The fastest unit of those `found` that multiplies `dtype`; "" if there is none."""
    return next((unit.name for unit in UNITS if unit.name in found and dtype in unit.types), "")


def int8_speed(found: tuple[str, ...]) -> str:
    """A sentence on the time of int8 training next to float32's, with the fastest unit of those `found`."""
    unit = next((unit for unit in UNITS if unit.name in found and "int8" in unit.types), None)
    if unit is None:
        return "int8 saves memory and no time on this device: no unit of it multiplies 8-bit integers."
    if unit.int8_step is None:
        return (
            f"int8 saves memory; whether it saves time with {unit.name} is not known: `edgelearn precision time` "
            f"measures it."
        )
    verdict = "is faster than float32" if unit.int8_step < 1 else "saves memory and is slower than float32"
    return f"int8 {verdict} with {unit.name}: steps of ResNet-18 took {unit.int8_step:.2f} of the time."


def with_probe(probe: str) -> tuple[str, ...]:
    """The units that `probe` tests."""
    return tuple(unit.name for unit in UNITS if unit.probe == probe)


def first_with(probe: str, found: tuple[str, ...]) -> str:
    """The fastest unit of those `found` that `probe` tests; "" if there is none."""
    return next((name for name in with_probe(probe) if name in found), "")

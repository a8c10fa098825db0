"""The OpenCL devices of this machine: list, choose and test them, and find their units.

A unit must compile, run, and give the integers that NumPy gives.
"""

from __future__ import annotations

import hashlib
import json
import platform as machine
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelearn import atomic, tuned
from edgelearn.caches import Place
from edgelearn.device import UNITS, Device, Unit
from edgelearn.display import Displayed, plural
from edgelearn.errors import DeviceError, EdgelearnError
from edgelearn.launch import Access, Buffer, In, InOut, Launch, Out, Role
from edgelearn.ops import BFloat16, Float16
from edgelearn.ops.formats import StoredType

from . import driver, kernels
from .context import Context
from .driver import POCL, POCL_CACHE, a_core_each, check_process, import_pyopencl, prepare_pocl_cache
from .kernels import Kernels, Runner

QUAD_BLOCKS = 64  # of 16 words that a test multiplies
HALVES = {"bf16": BFloat16(), "fp16": Float16()}


def find_units(device: Device) -> tuple[str, ...]:
    """Names of the units that `device` has, fastest first. The answer is kept next to compiled programs."""
    folder = kernels.programs_folder()
    path = folder / f"units-{_units_key(device)}.json" if folder else None
    if path and path.is_file():
        try:
            kept = json.loads(path.read_text())
            return tuple(unit.name for unit in UNITS if unit.name in kept)
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
    found = tuple(unit.name for unit in UNITS if _may_have(device, unit) and computes(device, unit))
    if path:
        atomic.keep(path, json.dumps(found).encode())
    return found


def computes(device: Device, unit: Unit) -> bool:
    """True if `unit` compiles on `device` and gives the right sums."""
    import pyopencl as cl

    try:
        results = list(PROBES[unit.probe](Context(device), unit))
    except (cl.Error, EdgelearnError):
        return False
    return all((found == expected).all() for found, expected in results)


def multiply_quads(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (sums that `unit` computes, those by NumPy) of random integers, the least and the most among them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (QUAD_BLOCKS, 16, 4), np.uint8, endpoint=True)
    w = rng.integers(-128, 127, (QUAD_BLOCKS, 4, 16), np.int8, endpoint=True)
    x[0], w[0], w[1] = 255, -128, 127
    sums = rng.integers(-(1 << 24), 1 << 24, (QUAD_BLOCKS, 16), np.int32)
    found = _run_probe(context, unit, {}, (x, w, sums), QUAD_BLOCKS, 1, QUAD_BLOCKS)
    yield found, sums + np.einsum("bcq,bqc->bc", x.astype(np.int32), w.astype(np.int32))


def multiply_tiles(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `multiply_quads`, of small whole numbers in each of the unit's types: their products and sums are exact."""
    rng = np.random.default_rng(0)
    if "int8" in unit.types:  # two steps of a depth of 16, whose rows of w lie as right_columns reads them
        x, w = rng.integers(-128, 127, (2, 2, 16, 16), np.int8, endpoint=True)
        macros = {"TYPE": int(StoredType.INT8), "VECTOR_WIDTH": 4}
        slots = [slot % 8 // 2 * 4 + slot % 2 + slot // 8 * 2 for slot in range(16)]
        found = _run_probe(context, unit, macros, (x, w[:, slots].copy(), np.zeros((16, 16), np.float32)), 32, 32)
        yield found, np.einsum("smk,skn->mn", x.astype(np.int32), w.astype(np.int32))
    x, w = (rng.integers(-8, 8, (16, 16), endpoint=True).astype(np.float32) for _ in range(2))
    for kind in unit.types:
        if kind == "int8":
            continue
        fmt = HALVES.get(kind)
        factors = [fmt.encode(v) if fmt else v for v in (x, w)]
        code = int(StoredType.of(fmt.storage)) if fmt else int(StoredType.FLOAT32)
        macros = {"TYPE": code, "VALUES": code, "VECTOR_WIDTH": 4}
        yield _run_probe(context, unit, macros, (*factors, np.zeros((16, 16), np.float32)), 32, 32), x @ w


def multiply_by_warpgroups(context: Context, unit: Unit) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `multiply_tiles`: x of 64 x 16, as it is and transposed in blocks, times w of 16 x 32. Floats: x as it is, and
    w transposed."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-8, 8, shape, endpoint=True).astype(np.float32) for shape in ((64, 16), (16, 32)))
    transposed = x.reshape(4, 16, 16).transpose(0, 2, 1)
    blocks = w.reshape(16, 2, 16).transpose(1, 0, 2)
    for kind in unit.types:
        if kind == "tf32":
            macros = {"TYPE": int(StoredType.FLOAT32), "VECTOR_WIDTH": 4, "TRANSPOSED": 0, "DEPTH_ROWS": 1}
            yield _run_probe(context, unit, macros, (x, w.T.copy(), np.zeros((64, 32), np.float32)), 128, 128), x @ w
            continue
        fmt = HALVES[kind]
        code = int(StoredType.of(fmt.storage))
        for number, left in enumerate((x, transposed)):
            macros = {"TYPE": code, "VALUES": code, "VECTOR_WIDTH": 4, "TRANSPOSED": number}
            factors = [fmt.encode(v.reshape(-1, 16).copy()) for v in (left, blocks)]
            yield _run_probe(context, unit, macros, (*factors, np.zeros((64, 32), np.float32)), 128, 128), x @ w


PROBES = {
    "add_quads_of_blocks": multiply_quads,
    "add_products_of_tiles": multiply_tiles,
    "add_products_of_warpgroups": multiply_by_warpgroups,
}


def _run_probe(
    context: Context, unit: Unit, macros: dict[str, int], arrays: tuple[np.ndarray, ...], items: int, group: int,
    *numbers: int,
) -> np.ndarray:  # fmt: skip
    """The last of `arrays` after the unit's probe has run on them."""
    buffers = [Buffer("probe", array.nbytes, Role.TEMPORARY) for array in arrays]
    memory = {buffer: context.allocate(buffer.nbytes, buffer.name) for buffer in buffers}
    for buffer, array in zip(buffers, arrays, strict=True):
        context.write(memory[buffer].handle, array)
    arguments = (*map(In, buffers[:-1]), InOut(buffers[-1]), *numbers)
    named = tuple(sorted({"UNIT": unit.name, **macros}.items()))
    launch = Launch("units.cl", unit.probe, named, (items,), group, arguments)
    Runner(context, Kernels(context), [launch], lambda buffer: (memory[buffer].handle, 0)).enqueue()
    return context.read(memory[buffers[-1]].handle, np.empty_like(arrays[-1]))


def _may_have(device: Device, unit: Unit) -> bool:
    return device.kind in unit.kinds and (not unit.extension or unit.extension in device.extensions)


def _units_key(device: Device) -> str:
    """Hash of everything that the answer depends on."""
    tests = [kernels.read_source("units.cl", probe) for probe in sorted({unit.probe for unit in UNITS})]
    facts = (device.id, device.version, device.driver, *device.notes, *map(repr, UNITS), repr(kernels.PTX_RULE), *tests)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


NO_RUNTIME = (
    "No OpenCL runtime was found, so there is no device to train on. Install one that runs on any CPU with:\n"
    "    pip install 'pyopencl[pocl]'"
)


def list_devices() -> list[Device]:
    """List every OpenCL device of this machine, in the order of its platforms.

    Raises DeviceError if there is no OpenCL runtime or no device, or in a fork of a process that uses one.
    """
    check_process()
    place = prepare_pocl_cache()
    try:
        cl = import_pyopencl()
    except ImportError as error:
        raise DeviceError(f"{NO_RUNTIME}\n(import pyopencl: {error})") from None
    try:
        with a_core_each("platforms"):
            platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(f"{_advice(place)}\n({error})") from None
    devices = []
    for number, platform in enumerate(platforms):
        try:
            with a_core_each(number):
                handles = platform.get_devices()
        except cl.Error:  # a platform without devices, such as a GPU driver on a machine without the GPU
            continue
        devices += [_describe(platform, handle, (number, place)) for place, handle in enumerate(handles)]
    if not devices:
        names = ", ".join(p.name for p in platforms) or "none"
        raise DeviceError(f"The OpenCL platforms found ({names}) have no device. {_advice(place)}")
    return devices


def _advice(place: Place) -> str:
    """The remedy where there is no device: without a folder to write to, PoCL doesn't report its own."""
    if not place.problem:
        return NO_RUNTIME
    return (
        f"PoCL, the OpenCL runtime for CPUs, has no folder for its kernels: {place.problem}. Name one that can be "
        f"written in the environment variable {POCL_CACHE}. If PoCL isn't installed:\n    pip install 'pyopencl[pocl]'"
    )


def _architecture(handle: Any, kind: str) -> str:
    import pyopencl as cl

    if kind == "cpu":
        return machine.machine().lower()
    try:  # NVIDIA's cl_nv_device_attribute_query
        numbers = (handle.compute_capability_major_nv, handle.compute_capability_minor_nv)
    except (AttributeError, cl.Error):
        return " ".join(handle.name.split())
    return f"compute capability {numbers[0]}.{numbers[1]}"


def _describe(platform: Any, handle: Any, index: tuple[int, int]) -> Device:
    import pyopencl as cl

    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind = next((name for flag, name in kinds.items() if handle.type & flag), "accelerator")
    notes, vector_width = driver.mend(platform, handle)
    return Device(
        name=" ".join(handle.name.split()),
        platform=platform.name.strip(),
        vendor=handle.vendor.strip(),
        driver=handle.driver_version.strip(),
        version=handle.version.strip(),
        kind=kind,
        memory=handle.global_mem_size,
        largest_buffer=handle.max_mem_alloc_size,
        local_memory=handle.local_mem_size,
        compute_units=handle.max_compute_units,
        clock_mhz=handle.max_clock_frequency,
        alignment=max(64, handle.mem_base_addr_align // 8),
        vector_width=vector_width,
        extensions=tuple(sorted(handle.extensions.split())),
        notes=notes,
        architecture=_architecture(handle, kind),
        index=index,
        probe=find_units,
        find_tuned=lambda device: tuned.find(device).choices,
    )


KIND_ORDER = {"gpu": 0, "accelerator": 1, "cpu": 2}


@dataclass(frozen=True, repr=False)
class DeviceChoice(Displayed):
    """The chosen device.

    Arguments:
    - `device`: the device.
    - `reason`: why it was chosen, in words.
    - `others`: the other devices of the machine, best first (default none).
    """

    drawn_by = "edgelearn.widgets.pages.shown:devices_html"

    device: Device
    reason: str
    others: tuple[Device, ...] = ()

    @property
    def headline(self) -> str:
        others = f"; {plural(len(self.others), 'other device')}" if self.others else ""
        return f"of {self.device.id}, {self.reason}{others}"


def rank(devices: list[Device]) -> list[Device]:
    """Sort devices, best first: GPUs, accelerators, CPUs; then the newest PoCL; then compute units times clock; then
    memory."""

    def key(device: Device) -> tuple:
        outdated = any(_is_pocl(device) and _is_pocl(d) and _version(d) > _version(device) for d in devices)
        return KIND_ORDER[device.kind], outdated, -device.compute_units * max(1, device.clock_mhz), -device.memory

    return sorted(devices, key=key)


def _is_pocl(device: Device) -> bool:
    return device.kind == "cpu" and device.platform == POCL


def _version(device: Device) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", device.driver)[:3])


def choose_device(name: str | Device | None = None) -> DeviceChoice:
    """Choose a device.

    Arguments:
    - `name`: part of its name, platform or version, in any case, or a Device (default: the best of the machine).

    Raises DeviceError if there is no device, none matches, or several match equally well.
    """
    if isinstance(name, Device):
        return DeviceChoice(name, "given by the caller")
    if name is not None and not isinstance(name, str):
        raise DeviceError(f"A device is part of its name or a Device of list_devices(), not {name!r:.60}.")
    devices = rank(list_devices())
    if not name:
        best = devices[0]
        why = f"a {best.kind.upper()} with {plural(best.compute_units, 'compute unit')}"
        reason = f"the only device ({why})" if len(devices) == 1 else f"the best of {len(devices)} devices: {why}"
        return DeviceChoice(best, reason, tuple(devices[1:]))
    exact = [d for d in devices if name.lower() in (d.name.lower(), d.id.lower())]
    found = exact or [d for d in devices if name.lower() in f"{d.id} {d.version}".lower()]
    listing = "; ".join(d.id for d in devices)
    if not found:
        raise DeviceError(f"No OpenCL device is called '{name}'. There are: {listing}.")
    if len(found) > 1 and len({d.id for d in found}) > 1:
        matches = "; ".join(d.id for d in found)
        raise DeviceError(f"'{name}' matches several devices: {matches}. Give more of the name.")
    return DeviceChoice(found[0], f"named '{name}'", tuple(d for d in devices if d is not found[0]))


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

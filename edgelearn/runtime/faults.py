"""Known faults of OpenCL drivers, and their remedies.

There is one: PoCL releases around 3.0 misidentify CPUs that are newer than their LLVM. When devices are listed, the
remedy overwrites a pointer in PoCL's memory: the CPU's name in PoCL's description of the device is replaced by that of
an older CPU with a subset of its instructions. EDGELEARN_POCL_FIX=0 turns this off. Newer releases of PoCL don't need
it and are preferred if several are installed (see choose.rank).

The same pointer lets a machine stand in for an older one: EDGELEARN_POCL_CPU names the CPU to compile for. PoCL must
find its built-in functions for that CPU, too, as `make test-processors` arranges.
"""

from __future__ import annotations

import ctypes
import os
import struct

from edgelearn.errors import DeviceError

POCL = "Portable Computing Language"  # the platform's name
SWITCH = "EDGELEARN_POCL_FIX"  # 0 in this environment variable turns the remedy off
CPU = "EDGELEARN_POCL_CPU"  # environment variable: the CPU to compile for, one of VECTOR_WIDTHS
AVX512 = ("icelake-client", "skylake-avx512")
# Floats in a vector register of the CPUs that are compiled for by name; LLVM 6 to 14 know all of them
VECTOR_WIDTHS = {"icelake-client": 16, "skylake-avx512": 16, "haswell": 8, "sandybridge": 8, "nehalem": 4, "x86-64": 4}

_renamed: dict[int, tuple[str, ctypes.Array]] = {}  # by device; the names must outlive the devices that point to them


def mend(platform, handle) -> tuple[str, ...]:
    """Apply the remedies that fit this device; return a sentence for each one applied."""
    return tuple(note for fits, remedy in FAULTS if fits(platform, handle) for note in [remedy(handle)] if note)


def vector_width(handle) -> int:
    """Floats in a vector register of the CPU that is compiled for: PoCL reports that of the machine."""
    name, _ = _renamed.get(handle.int_ptr, ("", None))
    return VECTOR_WIDTHS[name] if name else handle.native_vector_width_float


def _pocl_cpu_name(handle) -> str:
    """CPU name used by PoCL's LLVM: the end of the version, as in "… pthread-x86_64-unknown-linux-gnu-haswell"."""
    target = next((word for word in handle.version.split() if word.startswith("pthread-x86_64")), "")
    return target.partition("-gnu-")[2]


def _pocl_with_wrong_cpu_name(platform, handle) -> bool:
    if platform.name != POCL or os.environ.get(SWITCH) == "0":
        return False
    if os.environ.get(CPU):
        return True
    name = _pocl_cpu_name(handle)
    return name == "generic" or (name == "znver3" and _closest_cpu(cpu_flags()) in AVX512)


def _name_cpu_for_pocl(handle) -> str:
    """Replace the CPU's name in PoCL's memory by one with the same instructions.

    PoCL gets the CPU's name from LLVM. For a CPU newer than that LLVM it is "generic", which clang refuses ("unknown
    target CPU 'generic'", PoCL issue 1049): nothing compiles. A Zen 4 is taken for a Zen 3, which has no AVX-512, while
    PoCL links its built-in functions for AVX-512: a square root then aborts ("LLVM ERROR: Cannot select"). Newer
    releases of PoCL choose an architecture level by the CPU's features; this does the same for the packaged releases.
    """
    asked = os.environ.get(CPU, "")
    if asked and asked not in VECTOR_WIDTHS:
        raise DeviceError(f"{CPU} names '{asked}', a CPU that isn't known. Name one of: {', '.join(VECTOR_WIDTHS)}.")
    if handle.int_ptr not in _renamed:
        readable = os.path.exists("/proc/self/mem")
        field = _find_pointer_to(_pocl_cpu_name(handle).encode() + b"\0", handle.int_ptr, 4096) if readable else None
        if field is None and asked:
            raise DeviceError(f"This PoCL can't be told to compile for '{asked}'. Unset {CPU}.")
        if field is None:
            return ""
        name = asked or _closest_cpu(cpu_flags())
        text = ctypes.create_string_buffer(name.encode())
        _renamed[handle.int_ptr] = (name, text)
        ctypes.c_void_p.from_address(field).value = ctypes.addressof(text)
    name, _ = _renamed[handle.int_ptr]
    taken_for = _pocl_cpu_name(handle)
    if asked:
        return f"compiling for {name}, as {CPU} says, not for {taken_for}"
    return f"this PoCL's LLVM takes the CPU for '{taken_for}'; compiling for {name}, whose instructions it has"


FAULTS = [(_pocl_with_wrong_cpu_name, _name_cpu_for_pocl)]


def cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as file:
        line = next((line for line in file if line.startswith("flags")), ":")
    return set(line.split(":", 1)[1].split())


def _closest_cpu(flags: set[str]) -> str:
    """The most capable CPU known to LLVM 6 to 14 whose instructions are all in `flags`."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        extra = {"avx512ifma", "avx512vbmi", "avx512_vnni", "avx512_vbmi2", "avx512_bitalg", "gfni", "vaes"}
        return "icelake-client" if extra <= flags else "skylake-avx512"
    if {"avx2", "fma", "bmi2"} <= flags:
        return "haswell"
    if {"avx", "aes", "popcnt"} <= flags:
        return "sandybridge"
    return "nehalem" if {"sse4_2", "popcnt"} <= flags else "x86-64"


def _find_pointer_to(text: bytes, start: int, size: int) -> int | None:
    """Address of the pointer to `text` in [start, start + size), or None. Reads memory through /proc, where a bad
    address is an error instead of a crash."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        block = os.pread(memory, size, start)
        for offset in range(0, len(block) - 7, 8):
            (pointer,) = struct.unpack_from("Q", block, offset)
            try:
                if 4096 < pointer < 1 << 47 and os.pread(memory, len(text), pointer) == text:
                    return start + offset
            except OSError:
                continue
    finally:
        os.close(memory)
    return None

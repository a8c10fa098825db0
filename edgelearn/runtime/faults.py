"""Known faults of OpenCL drivers, and their remedies.

There is one: PoCL releases around 3.0 misidentify CPUs that are newer than their LLVM. When devices are listed, the
remedy overwrites a pointer in PoCL's memory: the CPU's name in PoCL's description of the device is replaced by that of
an older CPU with a subset of its instructions. EDGELEARN_POCL_FIX=0 turns this off. Newer releases of PoCL don't need
it and are preferred if several are installed (see choose.rank).
"""

from __future__ import annotations

import ctypes
import os
import struct

POCL = "Portable Computing Language"  # the platform's name
SWITCH = "EDGELEARN_POCL_FIX"  # 0 in this environment variable turns the remedy off
AVX512 = ("icelake-client", "skylake-avx512")

_renamed: dict[int, tuple[str, ctypes.Array]] = {}  # by device; the names must outlive the devices that point to them


def mend(platform, handle) -> tuple[str, ...]:
    """Apply the remedies that fit this device; return a sentence for each one applied."""
    return tuple(note for fits, remedy in FAULTS if fits(platform, handle) for note in [remedy(handle)] if note)


def _pocl_cpu_name(handle) -> str:
    """CPU name used by PoCL's LLVM: the end of the version, as in "… pthread-x86_64-unknown-linux-gnu-haswell"."""
    target = next((word for word in handle.version.split() if word.startswith("pthread-x86_64")), "")
    return target.rpartition("-")[2]


def _pocl_with_wrong_cpu_name(platform, handle) -> bool:
    if platform.name != POCL or os.environ.get(SWITCH) == "0":
        return False
    name = _pocl_cpu_name(handle)
    return name == "generic" or (name == "znver3" and _closest_cpu(_cpu_flags()) in AVX512)


def _name_cpu_for_pocl(handle) -> str:
    """Replace the CPU's name in PoCL's memory by one with the same instructions.

    PoCL gets the CPU's name from LLVM. For a CPU newer than that LLVM it is "generic", which clang refuses ("unknown
    target CPU 'generic'", PoCL issue 1049): nothing compiles. A Zen 4 is taken for a Zen 3, which has no AVX-512, while
    PoCL links its built-in functions for AVX-512: a square root then aborts ("LLVM ERROR: Cannot select"). Newer
    releases of PoCL choose an architecture level by the CPU's features; this does the same for the packaged releases.
    """
    if handle.int_ptr not in _renamed:
        if not os.path.exists("/proc/self/mem"):
            return ""
        field = _find_pointer_to(_pocl_cpu_name(handle).encode() + b"\0", handle.int_ptr, 4096)
        if field is None:
            return ""
        name = _closest_cpu(_cpu_flags())
        text = ctypes.create_string_buffer(name.encode())
        _renamed[handle.int_ptr] = (name, text)
        ctypes.c_void_p.from_address(field).value = ctypes.addressof(text)
    name, _ = _renamed[handle.int_ptr]
    taken_for = _pocl_cpu_name(handle)
    return f"this PoCL's LLVM takes the CPU for '{taken_for}'; compiling for {name}, whose instructions it has"


FAULTS = [(_pocl_with_wrong_cpu_name, _name_cpu_for_pocl)]


def _cpu_flags() -> set[str]:
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
    return "x86-64"


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

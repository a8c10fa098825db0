"""Faults of OpenCL drivers that edgelearn knows, and what it does about each."""

from __future__ import annotations

import ctypes
import os
import struct

AVX512 = ("icelake-client", "skylake-avx512")

_mended: dict[int, tuple[str, ctypes.Array]] = {}  # per device; the names must outlive the devices that point to them


def mend(platform, handle) -> tuple[str, ...]:
    """Apply the remedies that fit this device; returns a sentence for each one applied."""
    return tuple(note for fits, remedy in FAULTS if fits(platform, handle) for note in [remedy(handle)] if note)


def _pocl_cpu_name(handle) -> str:
    """What PoCL's LLVM calls the CPU: the end of the version, as in "… pthread-x86_64-unknown-linux-gnu-haswell"."""
    target = next((word for word in handle.version.split() if word.startswith("pthread-x86_64")), "")
    return target.rpartition("-")[2]


def _pocl_with_wrong_cpu_name(platform, handle) -> bool:
    if platform.name != "Portable Computing Language":
        return False
    name = _pocl_cpu_name(handle)
    return name == "generic" or (name == "znver3" and _closest_cpu(_cpu_flags()) in AVX512)


def _name_cpu_for_pocl(handle) -> str:
    """PoCL asks its LLVM for the CPU's name. For a CPU newer than that LLVM the answer is "generic", which clang
    then refuses ("unknown target CPU 'generic'", PoCL issue 1049): nothing compiles. A Zen 4 is taken for a Zen 3,
    which has no AVX-512, while PoCL's library of built-in functions is the one for AVX-512: a square root then ends the
    process ("LLVM ERROR: Cannot select"). Newer releases of PoCL choose an architecture level by the CPU's features;
    this does the same for the releases on the package index, by pointing the device's CPU name at one that has the
    features found here."""
    if handle.int_ptr not in _mended:
        if not os.path.exists("/proc/self/mem"):
            return ""
        field = _find_pointer_to(_pocl_cpu_name(handle).encode() + b"\0", handle.int_ptr, 4096)
        if field is None:
            return ""
        name = _closest_cpu(_cpu_flags())
        text = ctypes.create_string_buffer(name.encode())
        _mended[handle.int_ptr] = (name, text)
        ctypes.c_void_p.from_address(field).value = ctypes.addressof(text)
    name, _ = _mended[handle.int_ptr]
    taken_for = _pocl_cpu_name(handle)
    return f"this PoCL's LLVM takes the CPU for '{taken_for}'; compiling for {name}, whose instructions it has"


FAULTS = [(_pocl_with_wrong_cpu_name, _name_cpu_for_pocl)]


def _cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as file:
        line = next((line for line in file if line.startswith("flags")), ":")
    return set(line.split(":", 1)[1].split())


def _closest_cpu(flags: set[str]) -> str:
    """The most capable CPU known to LLVM 6 to 14 whose instructions are all among `flags`."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= flags:
        extra = {"avx512ifma", "avx512vbmi", "avx512_vnni", "avx512_vbmi2", "avx512_bitalg", "gfni", "vaes"}
        return "icelake-client" if extra <= flags else "skylake-avx512"
    if {"avx2", "fma", "bmi2"} <= flags:
        return "haswell"
    return "x86-64"


def _find_pointer_to(text: bytes, start: int, size: int) -> int | None:
    """Address of the pointer to `text` in [start, start + size). Memory is read through /proc, where a bad address
    is an error and not a crash."""
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

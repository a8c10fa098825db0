"""OpenCL drivers: the process that opened one, their caches, their faults with remedies, and their threads.

There is one fault: PoCL releases around 3.0 misidentify CPUs that are newer than their LLVM. When devices are listed,
the remedy overwrites a pointer in PoCL's memory: the CPU's name in PoCL's description of the device is replaced by that
of an older CPU with a subset of its instructions. EDGELEARN_POCL_FIX=0 turns this off. Newer releases of PoCL don't
need it and are preferred if several are installed (see `devices.rank`).

The same pointer lets a machine stand in for an older one: EDGELEARN_POCL_CPU names the CPU to compile for. PoCL must
find its built-in functions for that CPU, too, as `make test-processors` arranges.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from edgelearn import caches
from edgelearn.device import Device
from edgelearn.errors import DeviceError

_opened_by = 0  # process id; 0 while no process up to this one has opened the driver


def check_process() -> None:
    """Record that this process uses the driver. Raises DeviceError in a process forked from one that had opened it,
    where the next call into the driver would wait for ever."""
    global _opened_by
    if _opened_by not in (0, os.getpid()):
        raise DeviceError(
            f"Process {os.getpid()} was forked from process {_opened_by}, which had opened an OpenCL device: the "
            f"driver's threads are not copied by a fork. Start processes with "
            f"multiprocessing.get_context('spawn'), or fork before the first device is listed or used."
        )
    _opened_by = os.getpid()


POCL_CACHE = "POCL_CACHE_DIR"  # environment variable
NO_PYOPENCL_CACHE = "PYOPENCL_NO_CACHE"


def pocl_folder() -> Path:
    """Where PoCL keeps compiled kernels, as PoCL looks for it."""
    if named := os.environ.get(POCL_CACHE):
        return Path(named)
    home, own = os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME")
    parent = Path(own) if own else Path(home, ".cache") if home else Path("/tmp")
    return parent / "pocl" / "kcache"


@cache
def prepare_pocl_cache() -> caches.Place:
    """Give PoCL a folder that it can write, before it starts: without one it reports no device, and on a full disk it
    ends the process. Return that folder, which PoCL keeps."""
    if os.environ.get(POCL_CACHE) == "":  # unset by a shell or by make; PoCL takes it for a folder without a name
        del os.environ[POCL_CACHE]
    found = caches.place(pocl_folder(), POCL_CACHE)
    if found.problem and found.folder:
        found.folder.mkdir(parents=True, exist_ok=True)
        os.environ[POCL_CACHE] = str(found.folder)
    return found


def import_pyopencl() -> Any:
    """Import pyopencl without its own cache, an SQLite file that ends in errors where it can't be written. It holds
    Python code that is made in a millisecond: here it is kept in memory, or each kernel object would leave its own."""
    chosen = NO_PYOPENCL_CACHE in os.environ
    os.environ.setdefault(NO_PYOPENCL_CACHE, "1")
    try:
        import pyopencl
    finally:
        if not chosen:  # other processes choose for themselves
            del os.environ[NO_PYOPENCL_CACHE]
    _keep_generated_code()
    return pyopencl


@cache
def _keep_generated_code() -> None:
    """Have pyopencl generate the code that calls a kernel once for each signature, not for each kernel object."""
    from pyopencl import invoker

    name = "_generate_enqueue_and_set_args_module"
    if generate := getattr(invoker, name, None):  # a private function, which another version may not have
        setattr(invoker, name, cache(generate))


POCL = "Portable Computing Language"  # the platform's name
SWITCH = "EDGELEARN_POCL_FIX"  # 0 in this environment variable turns the remedy off
CPU = "EDGELEARN_POCL_CPU"  # environment variable: the CPU to compile for, one of VECTOR_WIDTHS
AVX512 = ("icelake-client", "skylake-avx512")
# Floats in a vector register of the CPUs that are compiled for by name; LLVM 6 to 14 know all of them
VECTOR_WIDTHS = {"icelake-client": 16, "skylake-avx512": 16, "haswell": 8, "sandybridge": 8, "nehalem": 4, "x86-64": 4}

_renamed: dict[int, tuple[str, ctypes.Array]] = {}  # by device; the names must outlive the devices that point to them


def mend(platform, handle) -> tuple[tuple[str, ...], int]:
    """Apply the remedies that fit this device. Return a sentence for each one applied, and the floats in a vector
    register of the CPU that is compiled for from then on: PoCL reports that of the machine."""
    notes = tuple(note for fits, remedy in FAULTS if fits(platform, handle) for note in [remedy(handle)] if note)
    name, _ = _renamed.get(handle.int_ptr, ("", None))
    return notes, VECTOR_WIDTHS[name] if name else handle.native_vector_width_float


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


POCL_THREADS = "POCL_MAX_PTHREAD_COUNT"  # environment variable: how many threads PoCL starts
THREADS = "/proc/self/task"
MARK = "edgelearn-open"  # name of the opening thread, which the threads that it starts inherit; 15 bytes at most

_opening = threading.Lock()
_opened: set[Hashable] = set()


@contextmanager
def a_core_each(driver: Hashable) -> Iterator[None]:
    """Pin each thread that this thread starts in the block, in which `driver` is opened, to a core of its own, one for
    each core of this process.

    By default PoCL starts a thread for every core of the machine and the scheduler may put two on one core while
    another is idle: a forward pass of MobileNet at batch 1 then takes 5 ms instead of 3. Does nothing on systems other
    than Linux, nor once the driver is open. Threads that other parts of the program start meanwhile are left alone.

    PoCL reads the number of threads from the process's environment with getenv. It is set for C alone, until the block
    ends: Python's os.environ never has it, but a child process that another thread starts in the block may inherit it.
    """
    with _opening:
        if driver in _opened or not hasattr(os, "sched_setaffinity") or not os.path.isdir(THREADS):
            yield
            return
        me, cores, before = threading.get_native_id(), sorted(os.sched_getaffinity(0)), _threads()
        name, sets = _name(me), POCL_THREADS not in os.environ
        if sets:
            os.putenv(POCL_THREADS, str(len(cores)))
        _rename(me, MARK)
        try:
            yield
            _opened.add(driver)
        finally:
            _rename(me, name)
            started = sorted(thread for thread in _threads() - before if _name(thread) == MARK)
            for thread in started:
                _rename(thread, name)
            if sets:
                os.unsetenv(POCL_THREADS)
        if len(started) == len(cores):
            for thread, core in zip(started, cores, strict=True):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, {core})


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(THREADS)}


def _name(thread: int) -> str:
    """The name that Linux has for a thread; empty once it has ended."""
    try:
        with open(f"{THREADS}/{thread}/comm") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _rename(thread: int, name: str) -> None:
    with suppress(OSError), open(f"{THREADS}/{thread}/comm", "w") as file:
        file.write(name)


def opencl_device(device: Device) -> Any:
    """Return the cl.Device that `device` describes."""
    import pyopencl as cl

    check_process()
    platform, place = device.index
    return cl.get_platforms()[platform].get_devices()[place]

"""Kernels: source text with includes expanded, compiled programs cached on disk, and those of one context; and lists of
launches, whose arguments are bound once, so that each launch takes a few microseconds to enqueue.

Instructions that NVIDIA's OpenCL compiler has no target for are comments in kernels (kernels/include/warpgroups.h). It
returns PTX, assembly as text, as a binary. Once it has turned their operands into registers, the marks are removed, and
the text names the target that has the instructions.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from ctypes import CDLL, byref, c_size_t, c_uint, c_void_p
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from edgelearn import atomic, caches
from edgelearn.device import Device
from edgelearn.display import Displayed, plural
from edgelearn.errors import KernelError
from edgelearn.launch import Access, Await, Buffer, Launch, Many, Role, Transfer, scalar
from edgelearn.ops.constants import HEADERS, StoredType
from edgelearn.ops.tensor import UNIT

from . import one_launch
from .context import Context
from .driver import POCL, POCL_CACHE, prepare_pocl_cache

INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
FUNCTION = re.compile(r"^KERNEL (\w+)\(.*?^}\n", re.MULTILINE | re.DOTALL)
# PoCL's Clang would read 17,000 lines for each program; our kernels call the few of include/builtins.h.
NO_BUILTINS = "-D_OPENCL_H_"  # Clang's guard of the header that declares all built-in functions


@cache
def kernels_folder() -> Path:
    """`kernels/` inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "kernels", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise KernelError(f"The OpenCL kernels are missing next to {package}: reinstall edgelearn.")


def is_text(source: str) -> bool:
    """True for the source of a generated kernel, in place of a file's name."""
    return "\n" in source


@cache
def read_source(name: str, kernel: str) -> str:
    """Return the text of one kernel with its headers, without other kernels there, which drivers would compile.

    Arguments:
    - `name`: a file in `kernels/`; the absolute path of another one, where headers next to it take precedence; or the
      text itself, which has several lines.

    Raises KernelError if the file and its headers have no such kernel.
    """
    path, seen = kernels_folder() / ("own.cl" if is_text(name) else name), set[str]()

    def expand(text: str) -> str:
        return INCLUDE.sub(lambda match: header(match[1]), text)

    def header(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        own = path.with_name(file)
        if file in HEADERS and not own.is_file():
            return HEADERS[file]
        return expand((own if own.is_file() else kernels_folder() / "include" / file).read_text())

    text = expand(name if is_text(name) else path.read_text())
    if kernel not in (match[1] for match in FUNCTION.finditer(text)):
        raise KernelError(f"{path} has no kernel '{kernel}'.")
    return FUNCTION.sub(lambda match: match[0] if match[1] == kernel else "", text)


def builtins() -> str:
    """Return declarations of the built-in functions that kernels call, for programs compiled with NO_BUILTINS."""
    return (kernels_folder() / "include" / "builtins.h").read_text()


# NVIDIA's OpenCL compiler has no target with `wgmma`, but its binaries are PTX, which is text: kernels hold the
# instruction in a comment whose operands it fills in, and the driver assembles the text without the mark.
PTX_RULE = (  # what is replaced, in order; part of the names of cached programs
    (rb"(?m)^\.target sm_90\b", b".target sm_90a"),
    (rb"//sm_90a: ", b""),
)


def for_sm_90a(ptx: bytes) -> bytes:
    """`ptx` with the instructions of sm_90a that it holds as comments."""
    for pattern, text in PTX_RULE:
        ptx = re.sub(pattern, text, ptx)
    return ptx


VARIABLE = "EDGELEARN_PROGRAMS"
DIGEST = hashlib.sha256
DIGEST_BYTES = DIGEST().digest_size
KEEP_THEIR_OWN = (POCL,)  # platforms that find compiled programs again
OF_BFLOATS = f"-DVALUES={int(StoredType.BFLOAT16)}"
FOR_SM_90A = "-DUNIT=WGMMA"  # option of programs that hold instructions as comments (`for_sm_90a`)
ROOM = 4_000_000  # bytes that PoCL needs for a program
QUIETLY = ("-w",)  # PoCL's compiler prints what it remarks to the terminal, past Python; the tests build without this


def build(context: Context, source: str, options: Sequence[str] = ()) -> Any:
    """Return a built cl.Program. Raises pyopencl.Error with the driver's log; warnings are suppressed.

    Binaries are cached on disk. Those of PoCL only if EDGELEARN_PROGRAMS is set: PoCL has a cache of its own, and
    compiles a kernel a second time, for work-groups of any size, when it is asked for a binary. A program made from
    one takes 0.3 MB less.
    """
    import pyopencl as cl

    options = [*options, *_exact_division(context), *_bfloat_conversion(context, options)]
    kept = programs_folder() if context.device.platform not in KEEP_THEIR_OWN or VARIABLE in os.environ else None
    path = kept / _program_name(context.device, source, options) if kept else None
    if path and (binary := _load(path)):
        try:
            return _from_binary(context, binary)
        except cl.Error:  # the driver has changed, but not its name
            path.unlink(missing_ok=True)
    _require_room(context.device)
    program = _without_remarks(cl.Program(context.cl_context, source), options)
    marked = FOR_SM_90A in options
    if path is None and not marked:
        return program
    binary = program.get_info(cl.program_info.BINARIES)[0]
    if marked:
        binary = for_sm_90a(binary)
    kept = path and atomic.keep(path, DIGEST(binary).digest() + binary)
    return _from_binary(context, binary) if kept or marked else program


def programs_folder() -> Path | None:
    """Folder of compiled programs: EDGELEARN_PROGRAMS, else in the user's cache. It may be deleted at any time. An
    empty EDGELEARN_PROGRAMS disables the cache."""
    return caches.folder("programs", VARIABLE)


def _require_room(device: Device) -> None:
    """Raise KernelError where PoCL would end the process: it writes what it compiles to its cache."""
    if device.platform != POCL:
        return
    folder = prepare_pocl_cache().folder
    problem = caches.problem(folder, ROOM) if folder else prepare_pocl_cache().problem
    if problem:
        raise KernelError(
            f"PoCL can't compile: it has no room for kernels ({problem}). Free some, or name another "
            f"folder in {POCL_CACHE}, and start again."
        )


def _exact_division(context: Context) -> list[str]:
    """Option for correctly rounded division on GPUs, whose default may be off by 2.5 ulp: a zero point slightly below
    7.5 would round to another integer. CPUs divide exactly."""
    import pyopencl as cl

    able = context.cl_context.devices[0].single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return ["-cl-fp32-correctly-rounded-divide-sqrt"] if context.device.is_gpu and able else []


def _bfloat_conversion(context: Context, options: Sequence[str]) -> list[str]:
    """Option of programs whose values are bfloat16, for GPUs that have instructions to round floats to them."""
    maker, _, capability = context.device.architecture.partition("compute capability ")
    able = not maker and capability and float(capability) >= 8
    return ["-DCONVERTS_BFLOATS=1"] if able and OF_BFLOATS in options else []


def _from_binary(context: Context, binary: bytes) -> Any:
    import pyopencl as cl

    return _without_remarks(cl.Program(context.cl_context, context.cl_context.devices, [binary]))


def _without_remarks(program: Any, options: Sequence[str] = ()) -> Any:
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return program.build([*options, *QUIETLY], cache_dir=False)


def _program_name(device: Device, source: str, options: Sequence[str]) -> str:
    """Hash of everything that the binary depends on; the device's notes name the CPU compiled for."""
    rule = [repr(PTX_RULE)] if FOR_SM_90A in options else []
    key = "\n".join((device.id, device.version, device.driver, *device.notes, *options, *rule, source))
    return DIGEST(key.encode()).hexdigest()


def _load(path: Path) -> bytes | None:
    """Read a binary, or None if it is missing or damaged: drivers may crash on a truncated one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    binary = content[DIGEST_BYTES:]
    return binary if binary and DIGEST(binary).digest() == content[:DIGEST_BYTES] else None


Progress = Callable[[int, int, str], None]
_in_use: WeakValueDictionary[tuple, Any] = WeakValueDictionary()  # programs by context, text and key


class Kernels(Displayed):
    """The compiled programs of a context. Compiled code is kept on disk between processes; a program that is in use
    elsewhere in this process is shared.

    Arguments:
    - `context`: the device in use.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._programs: dict[tuple, Any] = {}
        self._unused: dict[tuple, list[Any]] = {}
        self._declares = context.device.platform == POCL

    @property
    def headline(self) -> str:
        return f"of {plural(len(self._programs), 'program')} on {self.context.device.id}"

    def compile(self, launches: Iterable[Launch], progress: Progress | None = None) -> None:
        """Build the programs of `launches`; `progress(done, total, name)` is called before each one and at the end."""
        missing = {_key(run): run for run in launches if run.source and _key(run) not in self._programs}
        for done, (key, launch) in enumerate(missing.items()):
            if progress:
                progress(done, len(missing), launch.kernel)
            text = read_source(launch.source, launch.kernel)
            shared = self.context.cl_context.int_ptr, text, *key
            program = _in_use.get(shared)
            if program is None:
                _in_use[shared] = program = self._build(launch, text)
            self._programs[key] = program
        if progress and missing:
            progress(len(missing), len(missing), "")

    def kernel(self, launch: Launch) -> Any:
        """Return a cl.Kernel for exclusive use by this launch, its arguments unset. Returned kernels are reused, since
        creating one takes PyOpenCL a millisecond."""
        import pyopencl as cl

        self.compile([launch])
        if unused := self._unused.get(_key(launch)):
            return unused.pop()
        return cl.Kernel(self._programs[_key(launch)], launch.kernel)

    def assembly(self, launch: Launch) -> str:
        """Return the PTX of the program of a launch, on NVIDIA's GPUs. Raises KernelError if the driver gives none."""
        import pyopencl as cl

        self.compile([launch])
        binary = self._programs[_key(launch)].get_info(cl.program_info.BINARIES)[0]
        text = for_sm_90a(binary).rstrip(b"\0").decode(errors="replace")
        if not one_launch.HEADER.search(text):
            raise KernelError(
                f"{self.context.device.id} can't run several launches as one, which needs PTX, the assembly of "
                f"NVIDIA's drivers: leave one_launch off."
            )
        return text

    def give_back(self, launch: Launch, kernel: Any) -> None:
        """Return a kernel obtained from `kernel` for reuse. Everything enqueued with it must have finished."""
        self._unused.setdefault(_key(launch), []).append(kernel)

    def _build(self, launch: Launch, text: str) -> Any:
        import pyopencl as cl

        options = [f"-D{name}={value}" for name, value in launch.macros] + [f"-DGROUP={launch.group}"]
        try:
            return self._build_with_own_declarations(launch, text, options) or build(self.context, text, options)
        except cl.Error as error:
            where = f"The kernel '{launch.kernel}'" if is_text(launch.source) else f"kernels/{launch.source}"
            raise KernelError(
                f"{where} did not compile for {self.context.device.id} with {' '.join(options)}. "
                f"The driver says:\n{error}\nThis is a fault of edgelearn or of the driver: please report both lines, "
                f"and choose another device meanwhile (`edgelearn devices` lists them)."
            ) from None

    def _build_with_own_declarations(self, launch: Launch, text: str, options: list[str]) -> Any:
        """Build without PoCL's own declarations, or return None: for kernels of others, and where a PoCL refuses it."""
        import pyopencl as cl

        if not self._declares or is_text(launch.source) or Path(launch.source).is_absolute():
            return None
        try:
            return build(self.context, builtins() + text, [*options, NO_BUILTINS])
        except cl.Error:
            self._declares = False
            return None


def _key(launch: Launch) -> tuple:
    return launch.source, launch.kernel, launch.macros, launch.group


def without_event(queue: Any, kernel: Any, grid: Sequence[int], local: Sequence[int]) -> Callable[[], int] | None:
    """Return a function that enqueues a kernel and returns OpenCL's error code, 0 if there is none; or None where
    PyOpenCL's library doesn't tell where OpenCL is (Windows).

    Arguments:
    - `queue`, `kernel`: a cl.CommandQueue, and a cl.Kernel whose arguments are set. The caller keeps both.
    - `grid`, `local`: work-items, and those of a work-group, in each dimension.
    """
    if (function := _function()) is None:
        return None
    sizes = [byref((c_size_t * len(size))(*size)) for size in (grid, local)]
    handles = c_void_p(queue.int_ptr), c_void_p(kernel.int_ptr)
    return partial(function, *handles, c_uint(len(grid)), None, *sizes, c_uint(0), None, None)


@cache
def _function() -> Any:
    """OpenCL's clEnqueueNDRangeKernel, looked for in PyOpenCL's own library and those that it needs."""
    from pyopencl import _cl

    try:
        return CDLL(_cl.__file__).clEnqueueNDRangeKernel
    except (AttributeError, OSError):
        return None


class TransferQueue:
    """Runs `Transfer` and `Await` launches on a second queue.

    Before a page is copied back, the host waits until it has been copied out: drivers may read host memory when a copy
    is enqueued, before the events that it waits for (NVIDIA's does)."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._events: dict[Buffer, Any] = {}
        self._written: dict[Buffer, Any] = {}  # by page
        self._done: deque[Any] = deque()  # kept until complete: freeing the event of a running copy blocks

    def begin(self, buffer: Buffer, page: Buffer, target: Any, source: Any, offset: int) -> Any:
        """Start a copy between a cl.Buffer, at byte `offset`, and an array. `buffer` is the one on the device, `page`
        the one outside."""
        import pyopencl as cl

        outward = isinstance(target, np.ndarray)
        if not outward and page in self._written:
            self._written.pop(page).wait()
        before = cl.enqueue_marker(self.context.queue)
        self.context.queue.flush()
        place = {"src_offset": offset} if outward else {"dst_offset": offset}
        queue = self.context.transfers
        event = cl.enqueue_copy(queue, target, source, wait_for=[before], is_blocking=False, **place)
        queue.flush()
        self._events[buffer] = event
        if outward:
            self._written[page] = event
        return event

    def wait(self, buffer: Buffer) -> None:
        """Make the context's queue, not the host, wait for the last copy of `buffer`."""
        import pyopencl as cl

        event = self._events.pop(buffer)
        cl.enqueue_barrier(self.context.queue, wait_for=[event])
        self._done.append(event)
        while self._done and self._done[0].command_execution_status == cl.command_execution_status.COMPLETE:
            self._done.popleft()


FEW = 16  # launches up to here are enqueued soon
Memory = Callable[[Buffer], tuple[Any, int]]
Step = Callable[[], Any]  # enqueues a launch; returns its event, or None if there is nothing to time


class Runner:
    """Launches bound to memory. `runs` counts how often the list was enqueued.

    Arguments:
    - `context`: the device in use.
    - `kernels`: its compiled programs.
    - `launches`: in order.
    - `memory`: `memory(buffer)` returns the cl.Buffer in which a planned buffer lies, or the array of bytes if it is
      paged, and its offset there in bytes (a multiple of 64).
    - `barrier`: by which work-groups wait for each other, 64 bytes that were zero at first: then FEW launches and more
      run as one, unless they are profiled (default None: each is one of its own).
    """

    def __init__(
        self, context: Context, kernels: Kernels, launches: Sequence[Launch], memory: Memory,
        barrier: Buffer | None = None,
    ) -> None:  # fmt: skip
        self.context, self.launches = context, launches
        self.runs = 0
        self._kernels, self._memory, self._transfers = kernels, memory, TransferQueue(context)
        self._bound: list[tuple[Launch, Any]] = []  # kernels in use
        self._arguments: list[list[Any]] = []
        kept = context.profiling or any(isinstance(launch, Transfer | Await) for launch in launches)
        self._whole = self._bind_all(barrier) if barrier and not kept and len(launches) >= FEW else None

    @cached_property
    def _steps(self) -> list[Step]:
        return [self._bind(launch) for launch in self.launches]

    def _bind(self, launch: Launch) -> Step:
        if isinstance(launch, Transfer):
            return self._bind_transfer(launch)
        if isinstance(launch, Await):
            return partial(self._transfers.wait, launch.buffer)
        return self._bind_kernel(launch)

    def _bind_transfer(self, launch: Transfer) -> Step:
        def place(buffer: Buffer) -> Any:
            memory, offset = self._memory(buffer)
            return memory[offset : offset + buffer.nbytes] if buffer.role is Role.PAGED else memory

        source, target = launch.source_buffer, launch.target_buffer
        here, page = (source, target) if target.role is Role.PAGED else (target, source)
        _, offset = self._memory(here)
        return partial(self._transfers.begin, here, page, place(target), place(source), offset)

    def _bind_kernel(self, launch: Launch) -> Step:
        kernel = self._kernels.kernel(launch)
        self._bound.append((launch, kernel))
        first = -(-launch.grid[0] // launch.group) * launch.group
        local = (launch.group,) + (1,) * (len(launch.grid) - 1)
        return self._enqueuing(kernel, self._values(launch), (first, *launch.grid[1:]), local)

    def _values(self, launch: Launch) -> list[Any]:
        """The arguments of a kernel: memories and numbers."""
        values: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, int | float):
                values.append(scalar(argument))
            elif isinstance(argument, Many):
                handle, _ = self._memory(argument.accesses[0].buffer)
                values += [handle, np.uint32(0)]
            else:
                handle, offset = self._memory(argument.buffer)
                values += [handle, np.uint32((offset + argument.first) // UNIT)]
        return values

    def _bind_all(self, barrier: Buffer) -> Step:
        """All launches as one (runtime/one_launch.py)."""
        import pyopencl as cl

        handles = dict[int, Any]()

        def number(handle: Any) -> int:
            handles.setdefault(handle.int_ptr, handle)
            return list(handles).index(handle.int_ptr)

        def place(access: Access) -> tuple[int, int, int, bool]:
            handle, offset = self._memory(access.buffer)
            return number(handle), offset + access.first, access.nbytes, access.writes

        def value(each: Any) -> int:
            return int(each.view(np.uint32)) if isinstance(each, np.generic) else number(each)

        stages = one_launch.stages([list(map(place, launch.accesses)) for launch in self.launches])
        bodies, texts, parts = dict[tuple, one_launch.Body](), list[str](), list[one_launch.Part]()
        for launch, stage in zip(self.launches, stages, strict=True):
            if (key := _key(launch)) not in bodies:
                texts.append(self._kernels.assembly(launch))
                bodies[key] = one_launch.body(texts[-1], f"work_{len(bodies)}_{launch.kernel}", launch.group)
            values = tuple(map(value, self._values(launch)))
            parts.append(one_launch.Part(launch, bodies[key], values, stage))
        handle, offset = self._memory(barrier)
        where, groups = (number(handle), offset), self.context.device.compute_units
        text = one_launch.source(one_launch.shared_header(texts), parts, len(handles), where, groups)
        try:
            kernel = cl.Kernel(_from_binary(self.context, text.encode()), one_launch.NAME)
        except cl.Error as error:
            raise KernelError(
                f"{self.context.device.id} can't run these {len(self.launches)} launches as one: leave one_launch off. "
                f"The driver says:\n{error}"
            ) from None
        threads = one_launch.THREADS
        return self._enqueuing(kernel, list(handles.values()), (groups * threads,), (threads,))

    def _enqueuing(self, kernel: Any, values: list[Any], grid: tuple[int, ...], local: tuple[int, ...]) -> Step:
        import pyopencl as cl

        kernel.set_args(*values)
        queue = self.context.queue
        self._arguments.append(values)  # clSetKernelArg does not keep buffers alive
        with_event = partial(cl.enqueue_nd_range_kernel, queue, kernel, grid, local)
        enqueue = None if self.context.profiling else without_event(queue, kernel, grid, local)
        if enqueue is None:
            return with_event

        def step() -> None:
            if enqueue():
                with_event()  # raises the error by its name

        return step

    def close(self) -> None:
        """Give the kernels back. Everything enqueued must have finished."""
        for launch, kernel in self._bound:
            self._kernels.give_back(launch, kernel)
        self._bound, self._whole, self._arguments = [], None, []
        self.__dict__.pop("_steps", None)

    def enqueue(self) -> None:
        """Enqueue every launch in order, without waiting."""
        self.runs += 1
        if self._whole:
            self._whole()
            return
        profiling = self.context.profiling
        for launch, step in zip(self.launches, self._steps, strict=True):
            event = step()
            if profiling and event is not None:
                self.context.note(launch, event)

    def step_through(self, look: Callable[[Launch], bool]) -> Launch | None:
        """Run launch by launch, calling `look` after each; return the first launch for which it returns True."""
        for launch, step in zip(self.launches, self._steps, strict=True):
            step()
            self.context.finish()
            if look(launch):
                return launch
        return None

"""Compile OpenCL C, cached on disk by device and driver."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgelearn import atomic, caches
from edgelearn.device import Device
from edgelearn.errors import KernelError, RunError

from . import ptx
from .context import Context
from .driver_caches import POCL_CACHE, prepare
from .faults import POCL

VARIABLE = "EDGELEARN_PROGRAMS"
DIGEST = hashlib.sha256
DIGEST_BYTES = DIGEST().digest_size
KEEP_THEIR_OWN = (POCL,)  # platforms that find compiled programs again
FOR_SM_90A = "-DUNIT=WGMMA"  # option of programs that hold instructions as comments (ptx.py)
ROOM = 4_000_000  # bytes that PoCL needs for a program
QUIETLY = ("-w",)  # PoCL's compiler prints what it remarks to the terminal, past Python; the tests build without this


def build(context: Context, source: str, options: Sequence[str] = ()) -> Any:
    """Return a built cl.Program. Raises pyopencl.Error with the driver's log; warnings are suppressed.

    Binaries are cached on disk. Those of PoCL only if EDGELEARN_PROGRAMS is set: PoCL has a cache of its own, and
    compiles a kernel a second time, for work-groups of any size, when it is asked for a binary. A program made from
    one takes 0.3 MB less.
    """
    import pyopencl as cl

    options = [*options, *_exact_division(context)]
    kept = folder() if context.device.platform not in KEEP_THEIR_OWN or VARIABLE in os.environ else None
    path = kept / _name(context.device, source, options) if kept else None
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
        binary = ptx.for_sm_90a(binary)
    return _from_binary(context, binary) if (path and _save(path, binary)) or marked else program


def folder() -> Path | None:
    """Folder of compiled programs: EDGELEARN_PROGRAMS, else in the user's cache. It may be deleted at any time. An
    empty EDGELEARN_PROGRAMS disables the cache."""
    return caches.folder("programs", VARIABLE)


def _require_room(device: Device) -> None:
    """Raise KernelError where PoCL would end the process: it writes what it compiles to its cache."""
    if device.platform != POCL:
        return
    folder = prepare().folder
    problem = caches.problem(folder, ROOM) if folder else prepare().problem
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


def _from_binary(context: Context, binary: bytes) -> Any:
    import pyopencl as cl

    return _without_remarks(cl.Program(context.cl_context, context.cl_context.devices, [binary]))


def _without_remarks(program: Any, options: Sequence[str] = ()) -> Any:
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return program.build([*options, *QUIETLY], cache_dir=False)


def _name(device: Device, source: str, options: Sequence[str]) -> str:
    """Hash of everything that the binary depends on; the device's notes name the CPU compiled for."""
    rule = [repr(ptx.RULE)] if FOR_SM_90A in options else []
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


def _save(path: Path, binary: bytes) -> bool:
    """Write a binary; False if that fails, e.g. on a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, DIGEST(binary).digest() + binary)
        return True
    except (OSError, RunError) as error:
        caches.not_saved(path, error)
        return False

"""A microcontroller's program: its memory by the linker's map, and its steps in an emulated board."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import DeviceError
from edgelearn.launch import Role

from .memory_map import STACK, VALUES, MemoryMap, sections
from .write import Bundle

TOOLS = {  # and Debian's packages of them
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi", "make": "make",
    "qemu-system-arm": "qemu-system-arm",
}  # fmt: skip
_REGION = re.compile(r"^(FLASH|SRAM)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", re.MULTILINE)
_STACK = re.compile(r"^\.stack\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", re.MULTILINE)
_NUMBER = re.compile(r"\b[0-9a-f]{16}\b")
_SECONDS = 600
ARENA = ".bss.arena"


def missing(tools: Sequence[str] = tuple(TOOLS)) -> str:
    """A sentence on what to install for these tools; empty if all are there."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    packages = " ".join(TOOLS[tool] for tool in absent)
    return f"{' and '.join(absent)} not found: sudo apt install {packages}." if absent else ""


def link(bundle: Bundle) -> MemoryMap:
    """Link the program of a bundle for target cortex-m, and read the linker's map.

    Raises DeviceError without the tools, or with what the linker says, such as that SRAM overflows.
    """
    _make(bundle.folder, "model.elf", tools=("arm-none-eabi-gcc", "make"))
    return read_map((bundle.folder / "model.map").read_text(), bundle)


def read_map(text: str, bundle: Bundle) -> MemoryMap:
    """The memory of a bundle's program. `text`: of the linker's map."""
    sizes = {name: int(size, 16) for name, size in _REGION.findall(text)}
    flash: Counter[str] = Counter()
    sram: Counter[str] = Counter()
    for section in sections(text):
        (sram if section.is_in_sram else flash).update(
            _arena(bundle) if section.name == ARENA else {section.part: section.nbytes}
        )
        if section.name.startswith(".data"):  # copied from flash at the start
            flash[VALUES] += section.nbytes
    if found := _STACK.search(text):
        sram[STACK] = int(found[1], 16)
    return MemoryMap(bundle.plan.request.network.name, dict(flash), dict(sram), (sizes["FLASH"], sizes["SRAM"]))


def _arena(bundle: Bundle) -> dict[str, int]:
    """Bytes of the arena by the plan's roles."""
    return {role.value: size for role, size in bundle.plan.bytes_by_role.items() if role is not Role.CONSTANT}


def emulate(bundle: Bundle, x: np.ndarray, y: np.ndarray, rate: float) -> list[float]:
    """Train as `emulate_steps`, and return the loss of each step."""
    return [loss for loss, _ in emulate_steps(bundle, x, y, rate)]


def emulate_steps(bundle: Bundle, x: np.ndarray, y: np.ndarray, rate: float) -> list[tuple[float, float]]:
    """Train in an emulated board (QEMU's mps2-an386, a Cortex-M4), and return (loss, number of right answers) of each
    step, from before its update. Emulation has bits and no times.

    Arguments:
    - `bundle`: for target cortex-m.
    - `x`, `y`: examples and class numbers of whole mini-batches, one after the other.
    - `rate`: learning rate.

    Raises DeviceError without the tools, or with what they say.
    """
    request, count = bundle.plan.request, len(x)
    x, y = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int32)
    parts = [  # as the board reads them
        slice(at, min(at + request.micro_batch, end))
        for begin in range(0, count, request.batch_size)
        for end in (min(begin + request.batch_size, count),)
        for at in range(begin, end, request.micro_batch)
    ]
    (bundle.folder / "examples.bin").write_bytes(b"".join(x[part].tobytes() + y[part].tobytes() for part in parts))
    (bundle.folder / "model.elf").unlink(missing_ok=True)  # it has the learning rate
    said = _make(bundle.folder, "run", f"RATE={float(rate)!r}f", tools=tuple(TOOLS))
    numbers = [struct.unpack(">d", bytes.fromhex(word))[0] for word in _NUMBER.findall(said)]
    found = list(zip(numbers[::2], numbers[1::2], strict=True))
    if len(found) != (steps := -(-count // request.batch_size)):
        raise DeviceError(f"The emulated board made {len(found)} of {plural(steps, 'step')}, and said:\n{said}")
    return found


def _make(folder: Path, *words: str, tools: Sequence[str]) -> str:
    if problem := missing(tools):
        raise DeviceError(problem)
    done = subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise DeviceError(f"make {words[0]} of {folder} failed:\n{done.stderr}")
    return done.stdout + done.stderr

"""A microcontroller's program: its memory by the linker's map, and its steps in an emulated board."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgelearn.errors import DeviceError
from edgelearn.lab.runs import figures
from edgelearn.launch import Role
from edgelearn.tables import Table, Tabular

from .write import Bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOOLS = {  # and Debian's packages of them
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi", "make": "make",
    "qemu-system-arm": "qemu-system-arm",
}  # fmt: skip
SRAM_BEGINS = 0x20000000
_SECTION = re.compile(r"^ (\.[\w.]+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S+)$", re.MULTILINE)
_REGION = re.compile(r"^(FLASH|SRAM)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", re.MULTILINE)
_STACK = re.compile(r"^\.stack\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", re.MULTILINE)
_LOSS = re.compile(r"\b[0-9a-f]{16}\b")
_SECONDS = 120
ARENA, SMALL = ".bss.arena", 1024  # bytes below which a part is drawn among others


def missing(tools: Sequence[str] = tuple(TOOLS)) -> str:
    """A sentence on what to install for these tools; empty if all are there."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    packages = " ".join(TOOLS[tool] for tool in absent)
    return f"{' and '.join(absent)} not found: sudo apt install {packages}." if absent else ""


@dataclass(frozen=True, repr=False)
class MemoryMap(Tabular):
    """Memory of a microcontroller's program, by the linker's map.

    Arguments:
    - `name`: of the network.
    - `flash`, `sram`: bytes of each part.
    - `sizes`: bytes of flash and of SRAM that the board has.
    """

    name: str
    flash: dict[str, int]
    sram: dict[str, int]
    sizes: tuple[int, int]

    @property
    def headline(self) -> str:
        used = (f"{sum(parts.values()):,} bytes of {name}" for name, parts in self._memories)
        return f"of '{self.name}': {' and '.join(used)}"

    @property
    def _memories(self) -> tuple[tuple[str, dict[str, int]], ...]:
        return ("flash", self.flash), ("SRAM", self.sram)

    def table(self) -> Table:
        """A row for each part of each memory."""
        rows = [(memory, part, f"{size:,}") for memory, parts in self._memories for part, size in parts.items()]
        for (memory, parts), size in zip(self._memories, self.sizes, strict=True):
            rows.append((memory, "free", f"{size - sum(parts.values()):,}"))
        return Table(("memory", "part", "bytes"), rows, f"'{self.name}' by the linker's map", right=False)

    def plot(self) -> Figure:
        """Draw both memories as bars of their parts, with what is free."""
        figure = figures.canvas(9, 3.4)
        panels = figure.subplots(2, 1)
        for axes, (memory, parts), size in zip(panels, self._memories, self.sizes, strict=True):
            left, used = 0.0, sum(parts.values())
            shown = {part: nbytes for part, nbytes in parts.items() if nbytes >= SMALL}
            shown |= {"others": used - sum(shown.values())} if len(shown) < len(parts) else {}
            for number, (part, nbytes) in enumerate(shown.items()):
                color = figures.PALETTE[number % len(figures.PALETTE)]
                axes.barh(0, nbytes / 1024, left=left, color=color, height=0.5, label=f"{part}, {nbytes / 1024:.1f}")
                left += nbytes / 1024
            axes.set_xlim(0, size / 1024)
            axes.set_yticks([])
            title = f"{memory[0].upper()}{memory[1:]}: {used / 1024:,.1f} of {size / 1024:,.0f} KiB"
            figures.style(axes, title, "KiB", bars=True)
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1.2), fontsize=9, frameon=False)
        return figure


def link(bundle: Bundle) -> MemoryMap:
    """Link the program of a bundle for target cortex-m, and read the linker's map.

    Raises DeviceError without the tools, or with what the linker says, such as that SRAM overflows.
    """
    _make(bundle.folder, "model.elf", tools=("arm-none-eabi-gcc", "make"))
    return read_map((bundle.folder / "model.map").read_text(), bundle)


def read_map(text: str, bundle: Bundle) -> MemoryMap:
    """The memory of a bundle's program. `text`: of the linker's map."""
    sizes = {name: int(size, 16) for name, size in _REGION.findall(text)}
    flash: dict[str, int] = {}
    sram: dict[str, int] = {}
    _, _, placed = text.partition("Linker script and memory map")
    placed = re.sub(r"^( \.[\w.]+)\n", r"\1", placed, flags=re.MULTILINE)  # a long name has a line of its own
    for section, address, size, file in _SECTION.findall(placed):
        if section.startswith(".debug") or not int(size, 16):
            continue
        if int(address, 16) >= SRAM_BEGINS:
            parts = _arena(bundle) if section == ARENA else {"other variables": int(size, 16)}
            for part, nbytes in parts.items():
                sram[part] = sram.get(part, 0) + nbytes
        elif section.startswith((".text", ".rodata", ".vectors")):
            part = _part_of_flash(section, file)
            flash[part] = flash.get(part, 0) + int(size, 16)
    if found := _STACK.search(placed):
        sram["stack"] = int(found[1], 16)
    flash, sram = (dict(sorted(parts.items(), key=lambda item: -item[1])) for parts in (flash, sram))
    return MemoryMap(bundle.plan.request.network.name, flash, sram, (sizes["FLASH"], sizes["SRAM"]))


def _part_of_flash(section: str, file: str) -> str:
    if ".a(" in file:
        return "C library"
    if section == ".rodata.constants":
        return "frozen weights"
    if section == ".rodata.el_weights":
        return "initial weights"
    return "tables of the plan" if section.startswith(".rodata") else "kernels and runtime"


def _arena(bundle: Bundle) -> dict[str, int]:
    """Bytes of the arena by the plan's roles."""
    return {role.value: size for role, size in bundle.plan.bytes_by_role.items() if role is not Role.CONSTANT}


def emulate(bundle: Bundle, x: np.ndarray, y: np.ndarray, rate: float) -> list[float]:
    """Train in an emulated board (QEMU's mps2-an386, a Cortex-M4), and return the loss of each step. Emulation has
    bits and no times.

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
    losses = [struct.unpack(">d", bytes.fromhex(word))[0] for word in _LOSS.findall(said)]
    if len(losses) != (steps := -(-count // request.batch_size)):
        raise DeviceError(f"The emulated board made {len(losses)} of {steps} steps, and said:\n{said}")
    return losses


def _make(folder: Path, *words: str, tools: Sequence[str]) -> str:
    if problem := missing(tools):
        raise DeviceError(problem)
    done = subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise DeviceError(f"make {words[0]} of {folder} failed:\n{done.stderr}")
    return done.stdout + done.stderr

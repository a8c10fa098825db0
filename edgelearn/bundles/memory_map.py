"""The memory of a microcontroller's program by parts: as the linker's map has it, or predicted without a compiler.

The arena, constants, initial weights and tables follow from the plan and are computed. Code and its library follow from
the C sources; they were measured kernel by kernel (tools/measure_board.py); a program has all that its kernels need.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgelearn.errors import PlanError
from edgelearn.lab.runs import figures
from edgelearn.launch import Role
from edgelearn.tables import Table, Tabular

from .cortex_m import STACK_BYTES, CortexMTarget
from .functions import function_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 1024  # bytes below which a part is drawn among others
CODE, LIBRARY, TABLES = "kernels and runtime", "C library", "tables of the plan"
FROZEN, INITIAL, VALUES = "frozen weights", "initial weights", "initial values of variables"
VARIABLES, STACK = "other variables", "stack"
SRAM_BEGINS = 0x20000000
_SECTION = re.compile(r"^ (\.[\w.]+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S+)$", re.MULTILINE)


class Section(NamedTuple):
    """A section of an object file that the linker placed: its name, address and bytes, and the file."""

    name: str
    address: int
    nbytes: int
    file: str

    @property
    def is_in_sram(self) -> bool:
        return self.address >= SRAM_BEGINS

    @property
    def part(self) -> str:
        """The part of flash or SRAM that it belongs to."""
        if self.is_in_sram:
            return VARIABLES
        if ".a(" in self.file:
            return LIBRARY
        named = {".rodata.constants": FROZEN, ".rodata.el_weights": INITIAL}
        return named.get(self.name) or (TABLES if self.name.startswith(".rodata") else CODE)


def sections(text: str) -> Iterator[Section]:
    """The sections that a linker's map has placed. `text`: of the map."""
    _, _, placed = text.partition("Linker script and memory map")
    placed = re.sub(r"^( \.[\w.]+)\n", r"\1", placed, flags=re.MULTILINE)  # a long name has a line of its own
    for name, address, nbytes, file in _SECTION.findall(placed):
        section = Section(name, int(address, 16), int(nbytes, 16), file)
        loaded = section.is_in_sram or name.startswith((".text", ".rodata", ".vectors"))
        if section.nbytes and loaded and not name.startswith(".debug"):
            yield section


@dataclass(frozen=True, repr=False)
class MemoryMap(Tabular):
    """Memory of a microcontroller's program, by the linker's map.

    Arguments:
    - `name`: of the network.
    - `flash`, `sram`: bytes of each part, the largest first.
    - `sizes`: bytes of flash and of SRAM that the board has.
    """

    name: str
    flash: dict[str, int]
    sram: dict[str, int]
    sizes: tuple[int, int]

    def __post_init__(self) -> None:
        for name, parts in self._memories:
            ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
            object.__setattr__(self, name.lower(), ordered)

    @property
    def used(self) -> tuple[int, int]:
        """Bytes of flash and of SRAM in use."""
        return sum(self.flash.values()), sum(self.sram.values())

    @property
    def fits(self) -> bool:
        return all(used <= size for used, size in zip(self.used, self.sizes, strict=True))

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


SIZES = Path(__file__).parent / "board_sizes.json"
# Bytes of the structures of plan.h and calls.h on a processor of 32 bits
FACTS, CALL, ARGUMENT, NUMBER, PROGRAM, FILL, MEMORY = 272, 12, 8, 2, 40, 12, 8 + 4 + 1


@cache
def measured_sizes() -> dict:
    """The content of board_sizes.json."""
    return json.loads(SIZES.read_text())


def predict_map(made: CortexMTarget) -> MemoryMap:
    """Memory that the linker's map of a bundle will have, by parts.

    Arguments:
    - `made`: the bundle's target.

    Raises PlanError for a kernel that wasn't measured.
    """
    tables, plan = made.tables, made.tables.plan
    sizes = measured_sizes()
    groups = {sizes["runtime"]}
    for name in dict.fromkeys(function_of(step.launch) for step in tables.steps):
        if name not in sizes["kernels"]:
            raise PlanError(f"The size of the kernel {name} isn't known: run tools/measure_board.py.")
        groups.update(sizes["kernels"][name])
    code: Counter[str] = Counter()
    for number in groups:
        code.update(sizes["groups"][number])
    lists = sum(len(numbers) for parts in tables.lists.values() for numbers in parts.values())
    flash = {
        FROZEN: plan.bytes_by_role.get(Role.CONSTANT, 0), INITIAL: made.initial_bytes,
        TABLES: FACTS + CALL * len(made.values) + ARGUMENT * sum(map(len, made.values)) + NUMBER * lists
        + PROGRAM * len(tables.lists) + FILL * len(made.fills) + MEMORY * len(tables.roles),
    }  # fmt: skip
    sram = {role.value: nbytes for role, nbytes in plan.bytes_by_role.items() if role is not Role.CONSTANT}
    sram |= {STACK: STACK_BYTES, VARIABLES: code.pop(VARIABLES, 0) + made.variable_bytes}
    return MemoryMap(plan.request.network.name, dict(code + Counter(flash)), sram, made.board.sizes)

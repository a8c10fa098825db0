"""Target c: the plan's launches as calls of plain C functions, for one processor without an operating system.

The plan is made for PLAIN, a device of one core, so that it needs few of the kernels. Each of these has a function of
the same meaning in runtime/c: see functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgelearn.device import Device, Traits

from .functions import function_of, values_of
from .tables import UNIT, Fill, Tables
from .text import argument, array, braces

PLAIN = Device(
    name="one processor", platform="C99", vendor="", driver="", version="", kind="cpu", memory=1 << 40,
    largest_buffer=1 << 40, local_memory=1 << 15, compute_units=1, clock_mhz=1, alignment=UNIT, vector_width=4,
    extensions=(),
)  # fmt: skip
PLAIN_TRAITS = Traits(compute_units=1, vector_width=4, bare=True)


class PlainTarget:
    """The files of a bundle for one processor, besides the tables of every target.

    Arguments:
    - `tables`: the plan's.
    - `fills`: what is in memory before the first step.

    Raises PlanError for kernels without a C function, naming layer and remedy.
    """

    folders: tuple[str, ...] = ("c",)
    device, traits = PLAIN, PLAIN_TRAITS

    def __init__(self, tables: Tables, fills: Sequence[Fill]) -> None:
        self.tables, self.fills = tables, fills
        self.values = [values_of(step, tables.plan.request.network) for step in tables.steps]

    @property
    def kernels(self) -> int:
        """Number of different C functions."""
        return len({function_of(step.launch) for step in self.tables.steps})

    @property
    def code_bytes(self) -> int:
        """The kernels are part of the program."""
        return 0

    def files(self) -> dict[str, str]:
        """Generated sources by name."""
        return {"calls.c": self._calls()}

    def _calls(self) -> str:
        firsts = accumulate(map(len, self.values), initial=0)
        rows = [
            braces(f"el_{function_of(step.launch)}", first, len(values))
            for step, values, first in zip(self.tables.steps, self.values, firsts, strict=False)
        ]
        arguments = [argument(value) for values in self.values for value in values]
        return "\n".join([
            '/* The launches of the plan as calls. */\n#include "calls.h"\n',
            array("el_argument el_arguments", arguments), array("el_call el_calls", rows), self._memories(),
        ])  # fmt: skip

    def _memories(self) -> str:
        """One static array for all memories."""
        tables = self.tables
        sizes = [tables.plan.bytes_by_role[role] // 4 for role in tables.roles]
        starts = list(accumulate(sizes, initial=0))
        return "\n".join([
            f"static float arena[{starts[-1]}];\n",
            array("uint8_t el_memory_is_constant", [0] * len(sizes)),
            array("float *el_memories", (f"arena + {start}" for start in starts[:-1])).replace(
                "const float *el_memories", "float *const el_memories"
            ),
        ])  # fmt: skip

"""Target cortex-m: target c for a microcontroller, whose frozen weights and tables stay in flash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np

from edgelearn.compile.search import Budget
from edgelearn.display import Displayed
from edgelearn.errors import PlanError
from edgelearn.launch import Role

from .plain import PlainTarget
from .tables import UNIT, Fill, Tables
from .text import WEIGHTS_HEADER, array, weights_file

LINKER_SCRIPT = Path(__file__).parent / "runtime" / "cortex-m" / "board.ld"
STACK_BYTES = 8 << 10  # as in that file


@dataclass(frozen=True, repr=False)
class Board(Displayed):
    """A microcontroller's memory.

    Arguments:
    - `sram`, `flash`: bytes, or text such as "256 KiB" (defaults 256 KiB and 1 MiB).

    Raises PlanError for other values, and for an SRAM that the stack alone fills.
    """

    sram: int | str = 256 << 10
    flash: int | str = 1 << 20

    def __post_init__(self) -> None:
        for name in ("sram", "flash"):
            object.__setattr__(self, name, Budget.of(getattr(self, name)).nbytes)
        if self.sizes[1] <= STACK_BYTES:
            raise PlanError(f"An SRAM of {self.sram:,} bytes has no room besides the stack's {STACK_BYTES:,}.")

    @classmethod
    def of(cls, sram: int | str | None, flash: int | str | None) -> Board:
        """A board, whose missing sizes are the defaults."""
        given = {name: size for name, size in (("sram", sram), ("flash", flash)) if size is not None}
        return cls(**given)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of flash and of SRAM."""
        return int(self.flash), int(self.sram)

    @property
    def headline(self) -> str:
        return f"of {self.sizes[1]:,} bytes of SRAM and {self.sizes[0]:,} bytes of flash"


class CortexMTarget(PlainTarget):
    """The target of bundles for a Cortex-M4 or M7: that of target c, constants and initial weights as parts of the
    program, and a start for a board.

    Arguments:
    - `tables`: the plan's.
    - `fills`: what is in memory before the first step; constants among it become part of the program.
    - `board`: whose memory the linker fills (default: 256 KiB of SRAM, 1 MiB of flash).

    Raises PlanError as target c.
    """

    folders = ("c", "cortex-m")

    def __init__(self, tables: Tables, fills: Sequence[Fill], board: Board = Board()) -> None:
        self.board = board
        number = tables.roles.index(Role.CONSTANT) if Role.CONSTANT in tables.roles else -1
        super().__init__(tables, [fill for fill in fills if fill[0].memory != number])
        self._constants = bytearray(tables.plan.bytes_by_role.get(Role.CONSTANT, 0))
        for place, content in fills:
            if place.memory == number:
                self._constants[place.unit * UNIT : place.unit * UNIT + len(content)] = content

    def files(self) -> dict[str, str]:
        own = {"weights.c": self._weights(), "weights.h": self._header(), "board.ld": self._linker_script()}
        return super().files() | own

    @property
    def initial_bytes(self) -> int:
        """Bytes of the initial weights in flash."""
        size = WEIGHTS_HEADER + sum(len(content) for _, content in self.fills)
        return size + -size % 4

    @property
    def variable_bytes(self) -> int:
        """Bytes of the example's variables: targets, and inputs that can't be read to their place."""
        return 4 * (self._target_words + self._input_is_padded * self._input_floats)

    @property
    def _input_floats(self) -> int:
        request = self.tables.plan.request
        (shape,) = request.network.inputs.values()
        return request.micro_batch * prod(shape)

    @property
    def _input_is_padded(self) -> int:
        return int(self.tables.input.channels != self.tables.input.block)

    @property
    def _target_words(self) -> int:
        targets = self.tables.targets
        return self.tables.plan.request.micro_batch * targets.rows * max(1, targets.channels)

    def _memories(self) -> str:
        """One static array for the memories that are written; constants lie in flash."""
        tables = self.tables
        sizes = [0 if role is Role.CONSTANT else tables.plan.bytes_by_role[role] // 4 for role in tables.roles]
        starts = list(accumulate(sizes, initial=0))
        places = [f"arena + {start}" for start in starts[:-1]]
        if Role.CONSTANT in tables.roles:
            places[tables.roles.index(Role.CONSTANT)] = "(float *)(uintptr_t)constants"
        return "\n".join([
            f"static float arena[{starts[-1]}];\n",
            "static " + array("uint32_t constants", words(bytes(self._constants))),
            array("uint8_t el_memory_is_constant", (int(role is Role.CONSTANT) for role in tables.roles)),
            f"float *const el_memories[] = {{{', '.join(places)}}};\n",
        ])  # fmt: skip

    def _linker_script(self) -> str:
        flash, sram = self.board.sizes
        text = LINKER_SCRIPT.read_text()
        for name, old, size in (("1 MiB of flash", "1024K", flash), ("256 KiB of SRAM", "256K", sram)):
            text = text.replace(f"LENGTH = {old}", f"LENGTH = {size}")
            text = text.replace(name, f"{size:,} bytes of{name.partition(' of')[2]}")
        return text

    def _weights(self) -> str:
        content = weights_file(self.fills)
        return "\n".join([
            '/* The content of model.weights. */\n#include "weights.h"\n',
            array("uint32_t el_weights", words(content)), f"const uint32_t el_weights_bytes = {len(content)};\n",
        ])  # fmt: skip

    def _header(self) -> str:
        return "\n".join([
            "/* Initial weights, and the sizes of a micro-batch. */", "#ifndef EDGELEARN_WEIGHTS_H",
            "#define EDGELEARN_WEIGHTS_H", "", "#include <stdint.h>", "",
            f"#define EL_INPUT_FLOATS {self._input_floats}", f"#define EL_INPUT_IS_PADDED {self._input_is_padded}",
            f"#define EL_TARGET_WORDS {self._target_words}",
            "extern const uint32_t el_weights[];", "extern const uint32_t el_weights_bytes;", "", "#endif", "",
        ])  # fmt: skip


def words(content: bytes) -> list[str]:
    """Words of 32 bits as C has them; zeros fill the last one."""
    padded = content + bytes(-len(content) % 4)
    return [f"{word:#x}u" for word in np.frombuffer(padded, "<u4").tolist()]

"""Target cortex-m: target c for a microcontroller, whose frozen weights and tables stay in flash."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from edgelearn.launch import Role

from .plain import PlainTarget
from .tables import UNIT, Fill, Tables
from .text import array, weights_file


class CortexMTarget(PlainTarget):
    """The target of bundles for a Cortex-M4 or M7: that of target c, constants and initial weights as parts of the
    program, and a start for a board.

    Arguments:
    - `tables`: the plan's.
    - `fills`: what is in memory before the first step; constants among it become part of the program.

    Raises PlanError as target c.
    """

    folders = ("c", "cortex-m")

    def __init__(self, tables: Tables, fills: Sequence[Fill]) -> None:
        number = tables.roles.index(Role.CONSTANT) if Role.CONSTANT in tables.roles else -1
        super().__init__(tables, [fill for fill in fills if fill[0].memory != number])
        self._constants = bytearray(tables.plan.bytes_by_role.get(Role.CONSTANT, 0))
        for place, content in fills:
            if place.memory == number:
                self._constants[place.unit * UNIT : place.unit * UNIT + len(content)] = content

    def files(self) -> dict[str, str]:
        return super().files() | {"weights.c": self._weights(), "weights.h": self._header()}

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

    def _weights(self) -> str:
        content = weights_file(self.fills)
        return "\n".join([
            '/* The content of model.weights. */\n#include "weights.h"\n',
            array("uint32_t el_weights", words(content)), f"const uint32_t el_weights_bytes = {len(content)};\n",
        ])  # fmt: skip

    def _header(self) -> str:
        request = self.tables.plan.request
        (shape,) = request.network.inputs.values()
        targets = self.tables.targets
        words_of_example = targets.rows * max(1, targets.channels)
        padded = self.tables.input.channels != self.tables.input.block
        return "\n".join([
            "/* Initial weights, and the sizes of a micro-batch. */", "#ifndef EDGELEARN_WEIGHTS_H",
            "#define EDGELEARN_WEIGHTS_H", "", "#include <stdint.h>", "",
            f"#define EL_INPUT_FLOATS {request.micro_batch * prod(shape)}", f"#define EL_INPUT_IS_PADDED {int(padded)}",
            f"#define EL_TARGET_WORDS {request.micro_batch * words_of_example}",
            "extern const uint32_t el_weights[];", "extern const uint32_t el_weights_bytes;", "", "#endif", "",
        ])  # fmt: skip


def words(content: bytes) -> list[str]:
    """Words of 32 bits as C has them; zeros fill the last one."""
    padded = content + bytes(-len(content) % 4)
    return [f"{word:#x}u" for word in np.frombuffer(padded, "<u4").tolist()]

"""Predict the linker's map of a microcontroller's program from its plan, without a compiler.

The arena, constants, initial weights and tables follow from the plan and are computed. Code and its library follow from
the C sources; they were measured kernel by kernel (tools/measure_board.py); a program has all that its kernels need.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

from edgelearn.errors import PlanError
from edgelearn.launch import Role

from .cortex_m import STACK_BYTES, CortexMTarget
from .functions import function_of
from .memory_map import FROZEN, INITIAL, STACK, TABLES, VARIABLES, MemoryMap

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

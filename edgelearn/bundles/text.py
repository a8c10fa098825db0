"""C source text of the tables that every target has: model.c, and the content of model.weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from math import prod
from zlib import crc32

from edgelearn.compile import Kind

from .tables import MODES, PARTS, Fill, Matrix, Place, Tables, correction, search_periods

WIDTH = 112  # of a line of numbers
WEIGHTS_HEADER = 12  # bytes of model.weights before the weights: a name and a checksum
ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n\n"}


def quoted(text: str) -> str:
    """A C string literal, one for each line."""
    escaped = text.translate({ord(each): code for each, code in ESCAPES.items()})
    return "\n".join(f'"{line}"' for line in escaped.split("\n") if line) or '""'


def array(declaration: str, items: Iterable[object]) -> str:
    """The definition of a constant array; several items on a line as far as they fit. A zero stands for an empty one,
    which C doesn't have."""
    lines, line = [], ""
    for item in map(str, items):
        if line and len(line) + len(item) > WIDTH:
            lines.append(line)
            line = ""
        line += f"{item}, "
    body = "\n".join(f"  {each.rstrip()}" for each in [*lines, line] if each) or "  0"
    return f"const {declaration}[] = {{\n{body}\n}};\n"


def braces(*values: object) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _literal(content: bytes) -> str:
    """Bytes as a C string literal, in pieces of a line each."""
    plain = set(range(32, 127)) - set(b'"\\?')
    escaped = [chr(byte) if byte in plain else f"\\{byte:03o}" for byte in content]
    return "\n".join(f'  "{"".join(escaped[i : i + WIDTH])}"' for i in range(0, len(escaped), WIDTH))


def argument(value: Place | int | float) -> str:
    """An el_argument: a place, or the bits of an int or a float."""
    if isinstance(value, Place):
        return braces("EL_MEMORY", value.memory, value.unit)
    bits = struct.unpack("<I", struct.pack("<f" if isinstance(value, float) else "<i", value))[0]
    return braces("EL_NUMBER", 0, f"{bits}u")


def matrix(m: Matrix) -> str:
    return braces(m.place.memory, m.place.unit, m.rows, m.channels, m.block)


def weights_file(fills: Sequence[Fill]) -> bytes:
    """The content of model.weights: what is in memory before the first step."""
    data = b"".join(content for _, content in fills)
    return b"ELWEIGHT" + struct.pack("<I", crc32(data)) + data


def state_header(tables: Tables) -> bytes:
    """The header of a state file: a safetensors file of all that is kept, the number of updates and a checksum."""
    entries, at = {}, 0
    shapes = {name: ("F32", shape) for name, (_, shape) in tables.kept().items()}
    for name, (kind, shape) in (shapes | {"state/updates": ("I32", (1,)), "state/checksum": ("U32", (1,))}).items():
        end = at + 4 * prod(shape)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    about = {"format": "edgelearn state", "network": tables.plan.request.network.name}
    text = json.dumps({"__metadata__": about} | entries, separators=(",", ":"))
    text += " " * (-len(text.encode()) % 8)
    return struct.pack("<Q", len(text.encode())) + text.encode()


def model_source(tables: Tables, fills: Sequence[Fill]) -> str:
    """The definitions of plan.h. `fills`: what model.weights holds."""
    plan, request = tables.plan, tables.plan.request
    number, beta_1, beta_2 = correction(plan)
    kept, trained = tables.kept(), tables.trained()
    last = [*tables.shorter_batches, 0, 0, 0, 0][:4]
    unknown = [MODES.index(plan.ranges(kind, known=False, step=0)) for kind in (Kind.PREDICT, Kind.TRAIN)]
    periods = [*search_periods(plan), 0, 0][:2]
    facts = [
        quoted(request.network.name), request.batch_size, request.micro_batch, braces(*last), matrix(tables.input),
        matrix(tables.output), matrix(tables.targets), matrix(tables.matrix(plan.storage.control.scalars)),
        matrix(tables.matrix(plan.storage.control.counters)), float(tables.factor).hex(), len(tables.classes),
        tables.classes.start, number, float(beta_1).hex(), float(beta_2).hex(),
        braces(f"{request.seed & 0xFFFFFFFF}u", f"{request.seed >> 32}u"),
        int(bool(plan.storage.quantizers)), braces(*unknown), braces(*periods), len(tables.roles), len(tables.lists),
        len(trained), len(kept), len(fills),
    ]  # fmt: skip
    lists: list[int] = []
    programs = []
    for key, parts in tables.lists.items():
        spans = []
        for part in PARTS:
            spans.append(braces(len(lists), len(parts[part])))
            lists += parts[part]
        flags = int(key.kind is Kind.TRAIN), MODES.index(key.ranges), int(key.first), key.examples
        programs.append(braces(*flags, *spans))
    names = [name.partition("/")[2] for name in kept]
    rows = [braces(quoted(name), matrix(place)) for name, (place, _) in zip(names, kept.values(), strict=True)]
    header = state_header(tables)
    return "\n".join([
        '/* The plan of a network, made by edgelearn: see plan.txt. */\n#include "plan.h"\n',
        f"const el_plan_facts el_plan = {{\n  {(','+chr(10)+'  ').join(map(str, facts))}\n}};\n",
        array("uint64_t el_memory_bytes", (plan.bytes_by_role[role] for role in tables.roles)),
        array("uint16_t el_lists", lists), array("el_program el_programs", programs),
        array("el_named el_kept", rows),
        array("el_fill el_fills", (braces(*place, len(content)) for place, content in fills)),
        f"const char el_state_header[] =\n{_literal(header)};\n",
        f"const uint32_t el_state_header_bytes = {len(header)};\n",
    ])  # fmt: skip

"""A list of launches as one, on NVIDIA's GPUs: a persistent kernel, whose work-groups do the work of all launches, and
wait for each other where a launch needs what others wrote.

To enqueue a launch takes the host some 7 microseconds there, more than a small launch takes the device; work-groups
that wait for each other take one. NVIDIA's compiler returns PTX, assembly as text. Here the instructions of each kernel
become a block of one kernel, which reads a table: for each launch, which block, how many work-groups, its arguments.
A work-group of the persistent kernel has more work-items than theirs, and does several of their work-groups at a time,
each with a share of the local memory and a barrier of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import KernelError
from edgelearn.launch import Launch
from edgelearn.ops.tensor import ceil_div

THREADS = 256  # of a work-group, which leaves each 255 registers
BARRIERS = 15  # of a work-group, beside that of all its work-items
WARP = 32  # work-items that arrive at a barrier together
ALIGNMENT = 1024  # of a share of local memory
NAME = "all_launches"
GO_ON, WAIT, END = range(3)  # a launch is followed by the next one, by a wait for all work-groups, or by nothing
HEAD = 12  # words of a launch in the table before its arguments
RECORDS = 4 << 10  # bytes of local memory for rows of the table, at most
LOCAL_MEMORY = {"sm_90a": 227 << 10}  # bytes that a work-group may have, by target; 48 kB of others

HEADER = re.compile(r"\.version[^\n]*\n\.target[^\n]*\n\.address_size[^\n]*\n")
COMMENT = re.compile(r"//[^\n]*")
METADATA = re.compile(r"\.metadata_section\s*\{.*\Z", re.DOTALL)
ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)\s*(?:\.\w+[^\n{]*\s*)*\{", re.DOTALL)
PARAMETER = re.compile(r"\.param\s+\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+\d+)?)?\s+(\w+)")
LOCAL = re.compile(r"^\s*\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\];\n", re.MULTILINE)
OTHERS = re.compile(r"^\s*(?:\.(?:visible|extern|weak)\s+)?\.(?:func|const|global|shared)\b", re.MULTILINE)


@dataclass(frozen=True)
class Body:
    """A kernel as a block of PTX.

    Arguments:
    - `text`: the block.
    - `local`: bytes of local memory that its work-groups take.
    - `widths`: bits of each argument of the kernel.
    """

    text: str
    local: int
    widths: tuple[int, ...]

    @property
    def room(self) -> int:
        """Bytes from a work-group's local memory to that of the next one."""
        return ceil_div(self.local, ALIGNMENT) * ALIGNMENT


def shared_header(programs: Sequence[str]) -> str:
    """The first lines of a program that may have all instructions of these: of targets such as sm_90 and sm_90a, the
    latter has more."""
    found = [match[0] for ptx in programs if (match := HEADER.search(ptx))]
    return max(found, key=len)


def body(ptx: str, name: str, group: int) -> Body:
    """Turn the only kernel of a program into a block.

    Arguments:
    - `ptx`: the program.
    - `name`: of the block.
    - `group`: work-items of the kernel's work-groups.

    Raises KernelError if the program has more than a kernel and its local memory, asks for what isn't known here, or
    has work-groups that don't fit.
    """
    if group > THREADS or group % WARP:
        raise KernelError(
            f"The program of '{name}' can't be part of one launch: its work-groups are of {group}, and must be a "
            f"multiple of {WARP} up to {THREADS}."
        )
    header = HEADER.search(ptx)
    text = METADATA.sub("", COMMENT.sub("", ptx[header.end() :] if header else ""))
    places, local = {}, 0
    for align, variable, nbytes in LOCAL.findall(text):
        local = -(-local // int(align)) * int(align)
        places[variable] = local
        local += int(nbytes)
    text = LOCAL.sub("", text)
    entry = ENTRY.search(text)
    if entry is None or OTHERS.search(text):
        raise KernelError(f"The program of '{name}' can't be part of one launch: it is more than a kernel.")
    parameters = PARAMETER.findall(entry[2])
    widths = tuple(int(kind[1:]) for kind, _ in parameters)
    text = _of_its_arguments(text[entry.end() : text.rindex("}")], name, [own for _, own in parameters], widths)
    text = _of_its_place(text, name, group, places)
    text = re.sub(r"\bret;", "bra DONE;", text.replace("$L__", f"$L_{name}_"))
    return Body(f"{{\n{text}\nbra DONE;\n}}", local, widths)


def _of_its_arguments(text: str, name: str, parameters: Sequence[str], widths: Sequence[int]) -> str:
    """The kernel's instructions with words of the table in place of its arguments: numbers, or which of the memories
    that the one launch has."""
    for index, (own, width) in enumerate(zip(parameters, widths, strict=True)):
        place = f"[%record+{4 * (HEAD + index)}]"
        new = rf"ld.shared.u32 %place, {place};\nadd.u32 %place, %place, %memories;\nld.shared.u64 \2, [%place];"
        text = re.sub(
            rf"\bld\.param\.(\w+)\s+(%\w+), \[{own}\];", new if width == 64 else rf"ld.shared.\1 \2, {place};", text
        )
    if re.search(r"\.param\b", text):
        raise KernelError(f"The program of '{name}' can't be part of one launch: it uses an argument unusually.")
    return text


def _of_its_place(text: str, name: str, group: int, places: dict[str, int]) -> str:
    """The kernel's instructions with the block's place in place of what the device says of a launch."""
    special = {"%ntid.x": str(group), "%tid.x": "%item"}
    for number, axis in enumerate("xyz"):
        special |= {f"%ctaid.{axis}": f"%group_{axis}", f"%nctaid.{axis}": f"%groups_{axis}"}
        # OpenCL's offsets of groups and of items, and its number of groups
        special |= {f"%envreg{number}": "0", f"%envreg{number + 3}": "0", f"%envreg{number + 6}": f"%groups_{axis}"}
        if number:
            special |= {f"%ntid.{axis}": "1", f"%tid.{axis}": "0"}
    text = re.sub(r"%(?:n?ctaid|n?tid)\.[xyz]|%envreg[0-8]\b", lambda found: special[found[0]], text)
    if "%envreg" in text:
        raise KernelError(f"The program of '{name}' can't be part of one launch: it asks for an unknown register.")
    for variable, place in places.items():
        # As an address of its own, or in one
        own = re.escape(variable)
        text = re.sub(rf"\bmov\.u64\s+(%\w+), {own};", rf"add.s64 \1, %local, {place};", text)
        text = re.sub(
            rf"\[{own}(?:\+(\d+))?\]", lambda found, place=place: f"[%local+{place + int(found[1] or 0)}]", text
        )
        if re.search(rf"(?<![\w$]){own}(?![\w$])", text):
            raise KernelError(f"The program of '{name}' can't be part of one launch: it uses local memory unusually.")
    # The path for constants doesn't see values that other work-groups wrote meanwhile.
    text = re.sub(r"\bld\.global\.nc\b", "ld.global", text)
    return re.sub(r"\bbar\.sync\s+0;", f"bar.sync %barrier, {group};", text)


def stages(accesses: Sequence[Sequence[tuple[int, int, int, bool]]]) -> list[int]:
    """The stage of each launch: the first one after those of all earlier launches with which it shares bytes that one
    of the two writes.

    Arguments:
    - `accesses`: of each launch, (memory, first byte, bytes, writes) each.
    """
    count = sum(map(len, accesses))
    known = np.zeros((5, count), np.int64)  # memory, first, end, writes, stage, of those so far
    found, filled = list[int](), 0
    for own in accesses:
        stage, (places, starts, ends, writes, before) = 0, known[:, :filled]
        for place, first, nbytes, wrote in own:
            same = (places == place) & (starts < first + nbytes) & (first < ends) & ((writes > 0) | wrote)
            stage = max(stage, 1 + int(before[same].max(initial=-1)))
        for place, first, nbytes, wrote in own:
            known[:, filled] = place, first, first + nbytes, wrote, stage
            filled += 1
        found.append(stage)
    return found


@dataclass(frozen=True)
class Part:
    """A launch in the one launch.

    Arguments:
    - `launch`: the launch. `body`: its kernel.
    - `values`: its arguments: numbers of memories, or the bits of numbers.
    - `stage`: when it runs.
    """

    launch: Launch
    body: Body
    values: tuple[int, ...]
    stage: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Work-groups in each dimension."""
        first, *others = self.launch.grid
        y, z = [*others, 1, 1][:2]
        return ceil_div(first, self.launch.group), y, z


def table(parts: Sequence[Part], bodies: Sequence[Body], groups: int, local: int) -> np.ndarray:
    """Return the table that the persistent kernel reads, a row for each launch in the order in which it runs them:
    uint32, (launches, words).

    A work-group takes as many of a launch's work-groups at a time as have work-items and room in `local` bytes. They go
    to the `groups` work-groups in turn, beginning after the one that took the last of the same stage.

    Arguments:
    - `bodies`: of all parts, each once.
    """
    ordered = sorted(parts, key=lambda part: part.stage)
    width = ceil_div(HEAD + max(len(part.values) for part in parts), 4) * 4  # words are read four at a time
    words = np.zeros((len(parts), width), np.uint32)
    given = 0
    for row, part, following in zip(words, ordered, [*ordered[1:], None], strict=True):
        group, room, (x, y, z) = part.launch.group, part.body.room, part.grid
        count = max(1, min(THREADS // group, local // room if room else BARRIERS, BARRIERS))
        then = END if following is None else WAIT if following.stage > part.stage else GO_ON
        row[:HEAD] = (
            bodies.index(part.body), then, group, room, count * group, -given % groups, groups * count, x * y * z,
            x, y, z, 0,
        )  # fmt: skip
        sizes = zip(part.values, part.body.widths, strict=True)
        row[HEAD : HEAD + len(part.values)] = [value * 8 if width == 64 else value for value, width in sizes]
        given = given + x * y * z if then == GO_ON else 0
    return words


def arena(header: str, parts: Sequence[Part]) -> int:
    """Bytes of local memory: room for as many work-groups of each launch as there are work-items for, if the device has
    that much."""
    most = next((size for target, size in LOCAL_MEMORY.items() if f".target {target}," in header), 48 << 10)
    wanted = max(part.body.room * (THREADS // part.launch.group) for part in parts)
    return max(ALIGNMENT, min(wanted, most - RECORDS), *(part.body.local for part in parts))


def source(header: str, parts: Sequence[Part], memories: int, barrier: tuple[int, int], groups: int) -> str:
    """Return the PTX of a kernel that does the work of all `parts`, to be launched with `groups` work-groups of
    THREADS, all of which the device must hold at once.

    Arguments:
    - `header`: the first lines of a program for the device.
    - `memories`: number of its arguments, each a memory.
    - `barrier`: number of a memory, and the first byte there of four by which work-groups wait; zeros at first.
    """
    bodies = list(dict.fromkeys(part.body for part in parts))
    local = arena(header, parts)
    words = table(parts, bodies, groups, local)
    count, size = words.shape
    values = ", ".join(map(str, [*words.ravel(), *[0] * size]))  # and one that is fetched, but not run
    labels = [f"BODY_{number}" for number in range(len(bodies))]
    names = [f"{NAME}_{number}" for number in range(memories)]
    given = "\n".join(
        f"ld.param.u64 %memory, [{name}];\nst.shared.u64 [memories+{8 * number}], %memory;"
        for number, name in enumerate(names)
    )
    places = {
        "GIVEN": given, "STRIDE": 4 * size, "WORDS": size, "GROUPS": groups, "COUNTER": f"[{names[barrier[0]]}]",
        "FIRST": barrier[1], "COMPLETES": 0x80000001 - groups, "GO_ON": GO_ON, "END": END, "LABELS": ", ".join(labels),
        "BODIES": "\n".join(f"{label}: {own.text}" for label, own in zip(labels, bodies, strict=True)),
    }  # fmt: skip
    declared = ", ".join(f".param .u64 .ptr .global .align 16 {name}" for name in names)
    text = f"""{header}.global .align 16 .b32 table[{(count + 1) * size}] = {{{values}}};
.shared .align {ALIGNMENT} .b8 arena[{local}];
.shared .align 16 .b8 records[{8 * size}];
.shared .align 8 .b8 memories[{8 * memories}];
.entry {NAME}({declared})
.maxntid {THREADS}, 1, 1
.minnctapersm 1
{{
"""
    return text + re.sub("|".join(f"<{name}>" for name in places), lambda at: str(places[at[0][1:-1]]), MAIN) + "}\n"


# Two records of the table are in local memory: that of the launch, and the next one, which is on its way meanwhile.
# The first work-group adds what completes 1 << 31, so that this bit of the counter changes when all have come, and no
# count begins anew.
MAIN = """.reg .pred %idle, %more, %copies;
.reg .b32 %me, %own, %record, %place, %word, %body, %then, %group, %room, %used, %start, %stride, %total, %none;
.reg .b32 %groups_x, %groups_y, %groups_z, %group_x, %group_y, %group_z, %share, %item, %barrier, %at, %memories;
.reg .b32 %added, %before;
.reg .b64 %memory, %next, %local;
mov.u32 %me, %tid.x;
mov.u32 %own, %ctaid.x;
mov.u32 %record, records;
mov.u32 %memories, memories;
setp.ne.u32 %idle, %me, 0;
@%idle bra GIVEN;
<GIVEN>
GIVEN:
setp.lt.u32 %copies, %me, <WORDS>;
mov.u64 %next, table;
mul.wide.u32 %memory, %me, 4;
add.u64 %next, %next, %memory;
mad.lo.u32 %place, %me, 4, %record;
@%copies ld.global.nc.u32 %word, [%next];
@%copies st.shared.u32 [%place], %word;
bar.sync 0;
NEXT:
add.u64 %next, %next, <STRIDE>;
@%copies ld.global.nc.u32 %word, [%next];
ld.shared.v4.u32 {%body, %then, %group, %room}, [%record];
ld.shared.v4.u32 {%used, %start, %stride, %total}, [%record+16];
ld.shared.v4.u32 {%groups_x, %groups_y, %groups_z, %none}, [%record+32];
setp.ge.u32 %idle, %me, %used;
@%idle bra LEFT;
div.u32 %share, %me, %group;
rem.u32 %item, %me, %group;
add.u32 %barrier, %share, 1;
mov.u32 %place, arena;
mad.lo.u32 %place, %share, %room, %place;
cvt.u64.u32 %local, %place;
add.u32 %at, %own, %start;
rem.u32 %at, %at, <GROUPS>;
mad.lo.u32 %at, %share, <GROUPS>, %at;
setp.ge.u32 %idle, %at, %total;
@%idle bra LEFT;
MORE:
rem.u32 %group_x, %at, %groups_x;
div.u32 %group_z, %at, %groups_x;
rem.u32 %group_y, %group_z, %groups_y;
div.u32 %group_z, %group_z, %groups_y;
TARGETS: .branchtargets <LABELS>;
brx.idx %body, TARGETS;
<BODIES>
DONE:
ld.shared.u32 %group, [%record+8];
ld.shared.v2.u32 {%stride, %total}, [%record+24];
bar.sync %barrier, %group;
add.u32 %at, %at, %stride;
setp.lt.u32 %more, %at, %total;
@%more bra MORE;
LEFT:
ld.shared.u32 %then, [%record+4];
mov.u32 %place, records;
sub.u32 %record, %place, %record;
add.u32 %place, %place, <STRIDE>;
add.u32 %record, %record, %place;
mad.lo.u32 %place, %me, 4, %record;
@%copies st.shared.u32 [%place], %word;
bar.sync 0;
setp.eq.u32 %more, %then, <GO_ON>;
@%more bra NEXT;
setp.eq.u32 %more, %then, <END>;
@%more bra LAST;
setp.ne.u32 %idle, %me, 0;
@%idle bra ALL_CAME;
ld.param.u64 %memory, <COUNTER>;
add.u64 %memory, %memory, <FIRST>;
setp.eq.u32 %more, %own, 0;
selp.b32 %added, <COMPLETES>, 1, %more;
fence.acq_rel.gpu;
atom.global.add.u32 %before, [%memory], %added;
AGAIN:
ld.acquire.gpu.global.u32 %added, [%memory];
xor.b32 %added, %added, %before;
setp.ge.s32 %more, %added, 0;
@%more bra AGAIN;
ALL_CAME:
bar.sync 0;
bra NEXT;
LAST:
ret;
"""

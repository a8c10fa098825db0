"""A list of launches as one, on NVIDIA's GPUs: a persistent kernel, whose work-groups do the work of all launches, and
wait for each other where a launch needs what others wrote.

To enqueue a launch takes the host some 7 microseconds there, more than a small launch takes the device; work-groups
that wait for each other take one. NVIDIA's compiler returns PTX, assembly as text. Here each kernel becomes a function
of the numbers of its work-group and work-item. A work-group of the persistent kernel has more work-items than theirs,
and calls it for several of their work-groups at a time, each with a share of the local memory and a barrier of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.errors import KernelError
from edgelearn.launch import Launch

THREADS = 256  # of a work-group, which leaves each 255 registers
WARP = 32  # work-items that arrive at a barrier together
ALIGNMENT = 1024  # of a share of local memory
ARGUMENTS = ("group_x", "group_y", "group_z", "groups_x", "groups_y", "groups_z", "item", "room", "barrier")
NAME = "all_launches"

HEADER = re.compile(r"\.version[^\n]*\n\.target[^\n]*\n\.address_size[^\n]*\n")
COMMENT = re.compile(r"//[^\n]*")
METADATA = re.compile(r"\.metadata_section\s*\{.*\Z", re.DOTALL)
ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)\s*(?:\.\w+[^\n{]*\s*)*\{", re.DOTALL)
PARAMETER = re.compile(r"\.param\s+\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+\d+)?)?\s+(\w+)")
LOCAL = re.compile(r"^\s*\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\];\n", re.MULTILINE)
OTHERS = re.compile(r"^\s*(?:\.(?:visible|extern|weak)\s+)?\.(?:func|const|global|shared)\b", re.MULTILINE)


@dataclass(frozen=True)
class Body:
    """A kernel as a function of PTX.

    Arguments:
    - `name`, `text`: of the function.
    - `local`: bytes of local memory that its work-groups take.
    - `widths`: bits of each argument of the kernel.
    """

    name: str
    text: str
    local: int
    widths: tuple[int, ...]

    @property
    def room(self) -> int:
        """Bytes from a work-group's local memory to that of the next one."""
        return -(-self.local // ALIGNMENT) * ALIGNMENT


def shared_header(programs: Sequence[str]) -> str:
    """The first lines of a program that may have all instructions of these: of targets such as sm_90 and sm_90a, the
    latter has more."""
    found = [match[0] for ptx in programs if (match := HEADER.search(ptx))]
    return max(found, key=len)


def body(ptx: str, name: str, group: int) -> Body:
    """Turn the only kernel of a program into a function.

    Arguments:
    - `ptx`: the program.
    - `name`: of the function.
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
    declared = [f".param .b{width} {own}" for width, (_, own) in zip(widths, parameters, strict=True)]
    begin = f".func {name}({', '.join([*declared, *(f'.param .b32 {own}' for own in ARGUMENTS)])})\n{{\n"
    for own in ARGUMENTS:
        begin += f".reg .b32 %{own};\nld.param.b32 %{own}, [{own}];\n"
    begin += ".reg .b64 %local;\ncvt.u64.u32 %local, %room;\n"
    return Body(name, begin + _of_its_place(text[entry.end() :], name, group, places), local, widths)


def _of_its_place(text: str, name: str, group: int, places: dict[str, int]) -> str:
    """The kernel's instructions with the function's arguments in place of what the device says of a launch."""
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
    - `values`: its arguments, as PTX names them: numbers of memories, or the bits of numbers.
    - `stage`: when it runs.
    """

    launch: Launch
    body: Body
    values: tuple[str, ...]
    stage: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Work-groups in each dimension."""
        first, *others = self.launch.grid
        y, z = [*others, 1, 1][:2]
        return -(-first // self.launch.group), y, z


def memory(number: int) -> str:
    """The value of an argument that is one of the one launch's memories."""
    return f"[{NAME}_{number}]"


def source(header: str, parts: Sequence[Part], memories: int, barrier: tuple[int, int], groups: int) -> str:
    """Return the PTX of a kernel that does the work of all `parts`, to be launched with `groups` work-groups of
    THREADS, all of which the device must hold at once.

    Arguments:
    - `header`: the first lines of a program for the device.
    - `memories`: number of its arguments, each a memory.
    - `barrier`: number of a memory, and the first byte there of four by which work-groups wait; zeros at first.
    """
    bodies = {part.body.name: part.body for part in parts}
    local = max(ALIGNMENT, *(body.local for body in bodies.values()))
    lines = [header, f".shared .align {ALIGNMENT} .b8 arena[{local}];", WAIT, *(body.text for body in bodies.values())]
    declared = ", ".join(f".param .u64 .ptr .global .align 16 {NAME}_{number}" for number in range(memories))
    lines += [f".entry {NAME}({declared})", f".maxntid {THREADS}, 1, 1", ".minnctapersm 1", "{", REGISTERS]
    last, given = 0, 0
    for number, part in sorted(enumerate(parts), key=lambda pair: pair[1].stage):
        if part.stage > last:
            lines.append(f"ld.param.u64 %memory, {memory(barrier[0])};\nadd.u64 %memory, %memory, {barrier[1]};")
            lines.append(f"call wait_for_all, (%memory, {groups});")
            last, given = part.stage, 0
        elif number:  # else one might use barriers and local memory that others still use for the launch before
            lines.append("bar.sync 0;")
        lines.append(_part(number, part, groups, given, local))
        given += int(np.prod(part.grid))
    return "\n".join([*lines, "ret;", "}", ""])


def _part(number: int, part: Part, groups: int, given: int, local: int) -> str:
    """Instructions by which a work-group does its part of a launch, taking several of the launch's work-groups at a
    time: as many as have work-items and room in `local` bytes. They go to the `groups` work-groups in turn, beginning
    after the one that took the last of the `given` ones of the same stage."""
    group, room, (x, y, z) = part.launch.group, part.body.room, part.grid
    count = max(1, min(THREADS // group, local // room if room else THREADS))
    text = f"// {part.launch.kernel} {part.launch.layer}\n"
    if count * group < THREADS:
        text += f"setp.ge.u32 %idle, %me, {count * group};\n@%idle bra END_{number};\n"
    text += f"div.u32 %share, %me, {group};\nrem.u32 %item, %me, {group};\nmad.lo.u32 %room, %share, {room}, %arena;\n"
    text += f"add.u32 %barrier, %share, 1;\nadd.u32 %at, %own, {-given % groups};\nrem.u32 %at, %at, {groups};\n"
    text += f"mad.lo.u32 %at, %share, {groups}, %at;\nsetp.ge.u32 %idle, %at, {x * y * z};\n@%idle bra END_{number};\n"
    text += f"MORE_{number}:\nrem.u32 %x, %at, {x};\ndiv.u32 %y, %at, {x};\ndiv.u32 %z, %y, {y};\n"
    text += f"rem.u32 %y, %y, {y};\n{{\n"
    names = []
    places = ("%x", "%y", "%z", str(x), str(y), str(z), "%item", "%room", "%barrier")
    values = [*zip(part.values, part.body.widths, strict=True), *((value, 32) for value in places)]
    for index, (value, width) in enumerate(values):
        if width == 64:
            text += f"ld.param.u64 %memory, {value};\n"
        text += f".param .b{width} a{index};\nst.param.b{width} [a{index}], {'%memory' if width == 64 else value};\n"
        names.append(f"a{index}")
    text += f"call {part.body.name}, ({', '.join(names)});\n}}\nbar.sync %barrier, {group};\n"
    text += f"add.u32 %at, %at, {groups * count};\nsetp.lt.u32 %more, %at, {x * y * z};\n@%more bra MORE_{number};\n"
    return text + f"END_{number}:"


REGISTERS = """.reg .pred %idle, %more;
.reg .b32 %me, %own, %arena, %share, %item, %room, %barrier, %at, %x, %y, %z;
.reg .b64 %memory;
mov.u32 %me, %tid.x;
mov.u32 %own, %ctaid.x;
mov.u32 %arena, arena;"""

# The first group adds what completes 1 << 31, so that this bit changes when all have come, and no count begins anew.
WAIT = """.func wait_for_all(.param .b64 barrier, .param .b32 groups)
{
.reg .pred %p<3>;
.reg .b32 %r<7>;
.reg .b64 %counter;
bar.sync 0;
mov.u32 %r0, %tid.x;
setp.ne.u32 %p0, %r0, 0;
@%p0 bra ALL_CAME;
ld.param.u64 %counter, [barrier];
ld.param.u32 %r1, [groups];
mov.u32 %r2, %ctaid.x;
setp.eq.u32 %p1, %r2, 0;
sub.u32 %r3, 0x80000001, %r1;
selp.b32 %r4, %r3, 1, %p1;
fence.acq_rel.gpu;
atom.global.add.u32 %r5, [%counter], %r4;
AGAIN:
ld.acquire.gpu.global.u32 %r6, [%counter];
xor.b32 %r6, %r6, %r5;
setp.ge.s32 %p2, %r6, 0;
@%p2 bra AGAIN;
fence.acq_rel.gpu;
ALL_CAME:
bar.sync 0;
ret;
}"""

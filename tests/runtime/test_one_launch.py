"""Launches that run as one: when each runs, who does which part, and what becomes of their assembly."""

import itertools
import operator
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from edgelearn import Model
from edgelearn.compile import Request, make_plan
from edgelearn.errors import KernelError
from edgelearn.graph import Network
from edgelearn.launch import Launch
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import SGD, Conv2D, Dense, GlobalAveragePooling2D, ReLU, Softmax
from edgelearn.runtime import list_devices
from edgelearn.runtime.one_launch import (
    HEAD,
    THREADS,
    WARP,
    Body,
    Part,
    arena,
    body,
    shared_header,
    source,
    stages,
    table,
)

DEVICES = pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.id.replace(" ", "-"))
PTX = """//
// Generated
//
.version 9.0
.target sm_90, texmode_independent
.address_size 64

\t// .globl\tadd

.entry add(
\t.param .u64 .ptr .global .align 4 add_param_0,
\t.param .u32 add_param_1,
\t.param .f32 add_param_2
)
.reqntid 64, 1, 1
{
\t.reg .b32 \t%r<9>;
\t.reg .b64 \t%rd<4>;
\t// demoted variable
\t.shared .align 4 .b8 add_$_flags[6];
\t.shared .align 16 .b8 add_$_shares[1024];

\tld.param.u64 \t%rd1, [add_param_0];
\tmov.u32 \t%r1, %ctaid.x;
\tmov.u32 \t%r2, %ntid.x;
\tmov.u32 \t%r3, %tid.x;
\tmov.b32 \t%r4, %envreg3;
\tmov.b32 \t%r5, %envreg6;
\tmov.u32 \t%r6, %tid.y;
\tmov.u64 \t%rd2, add_$_shares;
\tst.shared.u32 \t[add_$_shares+4], %r3;
\tbar.sync \t0;
\tld.global.nc.v4.u32 \t{%r5, %r6, %r7, %r8}, [%rd1];
\tld.param.u32 \t%r9, [add_param_1];
\tld.param.f32 \t%f1, [add_param_2];
\tbra \t$L__BB0_1;
$L__BB0_1:
\tret;

}
.metadata_section {

.metadata 0 {
\t"cl_kernel_attributes",
\t"add",
\t"reqd_work_group_size(64,1,1)"
}

} // end of .metadata_section
"""


def test_a_kernel_becomes_a_block_of_its_place():
    found = body(PTX, "0_add", 64)
    assert (found.local, found.widths) == (16 + 1024, (64, 32, 32))
    for instruction in (
        f"ld.shared.u32 %place, [%record+{4 * HEAD}];\nadd.u32 %place, %place, %memories;\nld.shared.u64 %rd1",
        f"ld.shared.u32 %r9, [%record+{4 * HEAD + 4}];", f"ld.shared.f32 %f1, [%record+{4 * HEAD + 8}];",
        "mov.u32 \t%r1, %group_x;", "mov.u32 \t%r2, 64;", "mov.u32 \t%r3, %item;", "mov.b32 \t%r4, 0;",
        "mov.b32 \t%r5, %groups_x;", "mov.u32 \t%r6, 0;", "add.s64 %rd2, %local, 16;",
        "st.shared.u32 \t[%local+20], %r3;", "bar.sync %barrier, 64;", "ld.global.v4.u32 \t{%r5, %r6",
        "bra \t$L_0_add_BB0_1;", "$L_0_add_BB0_1:\n\tbra DONE;",
    ):  # fmt: skip
        assert instruction in found.text, found.text
    assert not re.search(r"%ctaid|%tid|%envreg|\.nc|\.shared \.align|metadata|reqntid|\bret\b|\.param|//", found.text)


@pytest.mark.parametrize("group", [48, 2 * THREADS])
def test_groups_that_do_not_fit_are_refused(group):
    with pytest.raises(KernelError, match=f"work-groups are of {group}"):
        body(PTX, "work", group)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".entry add", ".global .align 4 .b8 table[16];\n.entry add", "more than a kernel"),
        (".entry add", ".func other()\n{\nret;\n}\n.entry add", "more than a kernel"),
        ("%envreg3", "%envreg9", "unknown register"),
        ("mov.u64 \t%rd2, add_$_shares", "mov.u64 \t%rd2, add_$_shares+8", "local memory"),
        ("ld.param.u32 \t%r9, [add_param_1]", "cvta.param.u64 \t%r9, add_param_1", "argument"),
    ],
)
def test_what_is_not_known_is_refused(old, new, words):
    with pytest.raises(KernelError, match=f"'work'.*{words}"):
        body(PTX.replace(old, new), "work", 64)


def test_launches_wait_for_those_whose_bytes_they_share():
    found = stages([
        [(0, 0, 64, False), (1, 0, 64, True)],
        [(0, 0, 64, False), (1, 64, 64, True)],  # other bytes of the same memory
        [(1, 32, 64, False), (2, 0, 64, True)],  # reads what both wrote
        [(0, 64, 64, True)],  # nobody read these
        [(1, 40, 4, True)],  # after the reader has read them
        [(1, 64, 4, False)],  # readers don't wait for readers
    ])  # fmt: skip
    assert found == [0, 0, 1, 0, 2, 1]


OPERATIONS = {
    "mov": lambda a: a, "cvt": lambda a: a, "add": operator.add, "sub": operator.sub, "rem": operator.mod,
    "div": operator.floordiv, "mul.wide": operator.mul, "mad.lo": lambda a, b, c: a * b + c, "setp.ge": operator.ge,
    "setp.lt": operator.lt, "selp": lambda a, b, c: a if c else b, "setp.ne": operator.ne, "setp.eq": operator.eq,
}  # fmt: skip
LOADED = re.compile(r"ld\.\S+ \{?([^\[{}]*)\}?, \[(.*)\];")


def run(text: str, own: int, me: int, shared: dict[int, int], found: list) -> Iterator[str]:
    """Run the one launch's own instructions for the work-item `me` of the work-group `own`, whose local memory is
    `shared`. Appends what bodies are called with to `found`; yields where work-items wait for each other."""
    words = re.search(r"table\[\d+\] = \{(.*)\};", text)[1].split(", ")
    table = {4 * number: int(word) for number, word in enumerate(words)}
    lines, at = text[text.index("mov.u32 %me") :].splitlines(), 0
    labels = re.search(r"\.branchtargets (.*);", text)[1].split(", ")
    registers = {"%tid.x": me, "%ctaid.x": own, "arena": 0, "records": 1 << 20, "memories": 1 << 30, "table": 0}
    registers["%memory"] = 0  # an argument

    def value(name: str) -> int:
        return int(name) if re.fullmatch(r"-?\d+", name) else registers[name]

    def place(name: str) -> int:
        return sum(map(value, name.split("+")))

    while (line := lines[at]) != "ret;":
        at += 1
        if match := re.match(r"@(%\w+) ", line):
            if not registers[match[1]]:
                continue
            line = line[match.end() :]
        if match := re.fullmatch(r"bra (\w+);", line):
            at = lines.index(f"{match[1]}:")
        elif line == "brx.idx %body, TARGETS;":
            names = ("group_x", "group_y", "group_z", "groups_x", "groups_y", "groups_z", "item", "local", "barrier")
            arguments = [shared[registers["%record"] + 4 * (HEAD + number)] for number in range(3)]
            found.append((labels[registers["%body"]], arguments, [registers[f"%{name}"] for name in names]))
            at = lines.index("DONE:")
        elif line.startswith("ld.param"):
            continue
        elif line == "bar.sync 0;":
            yield "all here"
        elif line.startswith("fence"):  # the first work-item waits for other work-groups
            yield "all"
            at = lines.index("ALL_CAME:")
        elif match := LOADED.fullmatch(line):
            memory = table if "global" in line else shared
            for number, register in enumerate(match[1].split(", ")):
                registers[register] = memory[place(match[2]) + 4 * number]
        elif match := re.fullmatch(r"st\.shared\.u\d+ \[(.*)\], (%\w+);", line):
            shared[place(match[1])] = value(match[2])
        elif match := re.fullmatch(
            r"(mov|cvt|\w+(?:\.lo|\.wide|\.ge|\.lt|\.ne|\.eq)?)(?:\.[usb]\d+)+ (%\w+), (.*);", line
        ):
            registers[match[2]] = OPERATIONS[match[1]](*map(value, match[3].split(", ")))
        else:
            assert line.startswith(("bar.sync %barrier", "TARGETS")) or line.endswith(":"), line


def calls(text: str, own: int) -> tuple[list, list]:
    """Return the bodies that the first work-items of a work-group's warps run, with their arguments, and the waits of
    the work-group."""
    shared, found, waits = dict[int, int](), list[tuple](), list[str]()
    own_calls = {me: list[tuple]() for me in range(THREADS) if me % WARP == 0 or me < HEAD + 4}  # who copy a record
    items = {me: run(text, own, me, shared, own_calls[me]) for me in own_calls}
    waiting = dict[int, str]()
    while "left" not in waiting.values():
        for me in list(items):
            waiting[me] = next(items[me], "left")
            while waiting[me] == "all":
                waits.append("all")
                waiting[me] = next(items[me], "left")
        assert len(set(waiting.values())) == 1  # all of a work-group come to the same place
        waits.append(waiting[0])
    for me in range(0, THREADS, WARP):
        found += own_calls[me]
    return found, waits[:-1]


def _parts(launches: Sequence[tuple[Launch, Body, int]]) -> list[Part]:
    return [Part(launch, own, (1, number, 0), stage) for number, (launch, own, stage) in enumerate(launches)]


@pytest.mark.parametrize(("groups", "shares"), [(3, 4), (7, 4), (132, 1)])
def test_each_work_item_of_each_launch_is_run_once(groups, shares):
    """Looks at the first work-item of each warp."""
    small, large = body(PTX, "small", 64), body(PTX.replace("[1024]", "[40000]"), "large", 128)
    launches = [Launch("", "add", (), (640, 3, 2), 64, ()), Launch("", "add", (), (256,), 128, ())]
    # The second launch of the first stage begins where the 60 work-groups of the first one end.
    parts = _parts([(launches[0], small, 0), (launches[1], large, 0), (launches[0], small, 1)])
    text = source(shared_header([PTX]), parts, 2, (0, 192), groups)
    found, at_once = list[tuple](), set[tuple]()
    for own in range(groups):
        for name, (memory, number, _), (x, y, z, *grid, item, room, barrier) in calls(text, own)[0]:
            found.append((number, x, y, z, item))
            assert tuple(grid) == parts[number].grid and memory == 8  # the address of the second one, from the first
            at_once.add((name, room, barrier))
    wanted = [
        (number, x, y, z, item) for number, part in enumerate(parts)
        for x, y, z, item in itertools.product(*map(range, part.grid), range(0, part.launch.group, WARP))
    ]  # fmt: skip
    assert sorted(found) == wanted
    # Four small work-groups have 2 kB and a barrier each, where one of the large ones has room.
    assert at_once == {("BODY_1", 0, 1)} | {("BODY_0", 2048 * share, share + 1) for share in range(shares)}


def test_work_groups_wait_between_stages():
    launch, own = Launch("", "add", (), (640,), 64, ()), body(PTX, "add", 64)
    parts = _parts([(launch, own, stage) for stage in (0, 1, 0, 2)])
    text = source(shared_header([PTX]), parts, 2, (1, 192), 4)
    assert text.count("BODY_0:") == 1 and "BODY_1" not in text
    found, waits = calls(text, 0)
    # Launches of a stage wait for the work-items of the one before, those of others for all work-groups.
    assert [number for _, (_, number, _), _ in found[:4]] == [0, 2, 1, 3]
    here = "all here"
    assert waits == [here, here, here, "all", here, here, "all", here, here]
    # The second launch of the first stage begins where the 10 work-groups of the first one ended.
    assert table(parts, [own], 4, 4096)[:, 5].tolist() == [0, -10 % 4, 0, 0]
    assert "ld.param.u64 %memory, [all_launches_1];\nadd.u64 %memory, %memory, 192;" in text


@pytest.mark.parametrize(("target", "at_once"), [("sm_90", 1), ("sm_90a", 2)])
def test_local_memory_is_as_large_as_the_device_allows(target, at_once):
    own = body(PTX.replace("[1024]", "[36000]"), "add", 128)
    part = Part(Launch("", "add", (), (256,), 128, ()), own, (0, 0, 0), 0)
    assert arena(shared_header([PTX.replace("sm_90", target)]), [part]) // own.room == at_once


@DEVICES
def test_the_barrier_is_planned(device):
    network = mobilenet_v2_cifar()
    plain, one = (
        make_plan(Request(network, optimizer=SGD(0.1), batchnorm="batch", one_launch=one), device)
        for one in (False, True)
    )
    assert plain.storage.barrier is None
    assert one.storage.barrier and one.storage.barrier.nbytes == 64
    assert one.peak_bytes - plain.peak_bytes == device.alignment


def _network() -> Network:
    net = Network("small", (12, 12, 3))
    for i in range(6):
        net.add(f"conv{i}", Conv2D(16, 3, 1, (1, 1)))
        net.add(f"relu{i}", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("classes", Dense(4))
    net.add("softmax", Softmax())
    return net


@DEVICES
def test_one_launch_gives_the_same_bits_or_says_what_it_needs(device):
    x, y = np.random.default_rng(0).normal(size=(4, 12, 12, 3)).astype(np.float32), np.array([0, 1, 2, 3])
    found = []
    for one in (False, True):
        model = Model(_network(), device=device.id, seed=3)
        model.compile(SGD(0.1), one_launch=one)
        if one and "NVIDIA" not in device.platform:
            with pytest.raises(KernelError, match="leave one_launch off"):
                model.fit(x, y, 1, verbose=0)
            return
        model.fit(x, y, 1, 2, verbose=0)
        found.append(model.weights)
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])

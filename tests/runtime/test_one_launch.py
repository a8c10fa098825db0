"""Launches that run as one: when each runs, who does which part, and what becomes of their assembly."""

import itertools
import operator
import re

import numpy as np
import pytest

from edgelearn import Model
from edgelearn.compile import Request, make_plan
from edgelearn.errors import KernelError
from edgelearn.graph import Network
from edgelearn.launch import Launch
from edgelearn.models import mobilenet_v2_cifar
from edgelearn.ops import SGD, Conv2D, Dense, GlobalAveragePooling2D, ReLU, Softmax
from edgelearn.runtime import list_devices, one_launch
from edgelearn.runtime.one_launch import THREADS, WARP, Part, body, memory, shared_header, source, stages

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


def test_a_kernel_becomes_a_function_of_its_place():
    found = body(PTX, "work_0_add", 64)
    assert (found.local, found.widths) == (16 + 1024, (64, 32, 32))
    for instruction in (
        ".param .b64 add_param_0, .param .b32 add_param_1, .param .b32 add_param_2, .param .b32 group_x",
        "mov.u32 \t%r1, %group_x;", "mov.u32 \t%r2, 64;", "mov.u32 \t%r3, %item;", "mov.b32 \t%r4, 0;",
        "mov.b32 \t%r5, %groups_x;", "mov.u32 \t%r6, 0;", "add.s64 %rd2, %local, 16;",
        "st.shared.u32 \t[%local+20], %r3;", "bar.sync %barrier, 64;", "ld.global.v4.u32 \t{%r5, %r6",
    ):  # fmt: skip
        assert instruction in found.text
    assert not re.search(r"%ctaid|%tid|%envreg|\.nc|\.shared \.align|metadata|reqntid|//", found.text)


@pytest.mark.parametrize("group", [48, 512])
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
    "mov": lambda a: a, "add": operator.add, "rem": operator.mod, "div": operator.floordiv,
    "mad.lo": lambda a, b, c: a * b + c, "setp.ge": operator.ge, "setp.lt": operator.lt,
}  # fmt: skip


def calls(main: str, own: int, me: int) -> list[tuple[str, list[int]]]:
    """Run the one launch's instructions for a work-item `me` of the work-group `own`; returns (function, its
    arguments), memories being 0."""
    lines, at, arguments, found = main.splitlines(), 0, dict[str, int](), []
    registers = {"%tid.x": me, "%ctaid.x": own, "arena": 0, "%memory": 0}

    def value(name: str) -> int:
        return int(name) if name.isdigit() else registers[name]

    while at < len(lines):
        line, at = lines[at], at + 1
        if match := re.fullmatch(r"@(%\w+) bra (\w+);", line):
            at = lines.index(f"{match[2]}:") if registers[match[1]] else at
        elif match := re.fullmatch(r"st\.param\.b\d+ \[(\w+)\], (\S+);", line):
            arguments[match[1]] = value(match[2])
        elif match := re.fullmatch(r"call (work\w+), \((.*)\);", line):
            found.append((match[1], [arguments[name] for name in match[2].split(", ")]))
        elif match := re.fullmatch(r"(\w+(?:\.lo|\.ge|\.lt)?)\.u\d+ (%\w+), (.*);", line):
            registers[match[2]] = OPERATIONS[match[1]](*map(value, match[3].split(", ")))
    return found


@pytest.mark.parametrize(("groups", "shares"), [(3, 4), (7, 4), (132, 1)])
def test_each_work_item_of_each_launch_is_run_once(groups, shares):
    """Looks at the first work-item of each warp."""
    small, large = body(PTX, "work_small", 64), body(PTX.replace("[1024]", "[8192]"), "work_large", 128)
    launches = [Launch("", "add", (), (640, 3, 2), 64, ()), Launch("", "add", (), (256,), 128, ())]
    # The second launch of the first stage begins where the 60 work-groups of the first one end.
    parts = [
        Part(launch, own, (memory(0), str(number), "0"), stage)
        for number, (launch, own, stage) in enumerate(
            [(launches[0], small, 0), (launches[1], large, 0), (launches[0], small, 1)]
        )
    ]
    text = source(shared_header([PTX]), parts, 1, (0, 192), groups)
    main = text[text.index(f".entry {one_launch.NAME}") :].replace("ld.param.u64 %memory", "//")
    found, at_once = list[tuple](), set[tuple]()
    for own, me in itertools.product(range(groups), range(0, THREADS, WARP)):
        for name, (_, number, _, x, y, z, *grid, item, room, barrier) in calls(main, own, me):
            found.append((number, x, y, z, item))
            assert tuple(grid) == parts[number].grid and name == parts[number].body.name
            at_once.add((name, me // parts[number].launch.group, room, barrier))
    wanted = [
        (number, x, y, z, item) for number, part in enumerate(parts)
        for x, y, z, item in itertools.product(*map(range, part.grid), range(0, part.launch.group, WARP))
    ]  # fmt: skip
    assert sorted(found) == wanted
    # Four small work-groups have 2 kB and a barrier each, where one of the large ones has room.
    rooms = {("work_small", share, 2048 * share, share + 1) for share in range(shares)}
    assert at_once == {("work_large", 0, 0, 1)} | rooms


def test_the_source_calls_each_kernel_between_waits():
    bodies = [body(PTX, "work_0_add", 64), body(PTX, "work_1_add", 128)]
    launches = [Launch("", "add", (), (640, 3), 64, ()), Launch("", "add", (), (256,), 128, ())]
    parts = [
        Part(launches[0], bodies[0], (memory(0), "7", "0"), 0), Part(launches[1], bodies[1], (memory(1), "8", "0"), 1),
        Part(launches[1], bodies[1], (memory(0), "9", "0"), 0),
    ]  # fmt: skip
    assert [part.grid for part in parts] == [(10, 3, 1), (2, 1, 1), (2, 1, 1)]
    text = source(shared_header([PTX]), parts, 2, (1, 192), 132)
    main = text[text.index(f".entry {one_launch.NAME}") :]
    assert text.count(".func work_0_add") == text.count(".func work_1_add") == 1
    order = re.findall(r"call (\w+)|^bar\.sync (0);", main, re.MULTILINE)
    # A launch of the same stage begins when all work-items have left the one before.
    assert [name or zero for name, zero in order] == ["work_0_add", "0", "work_1_add", "wait_for_all", "work_1_add"]
    assert f"ld.param.u64 %memory, {memory(1)};\nadd.u64 %memory, %memory, 192;" in main
    # The arena has room for one work-group, though 256 work-items are four groups of 64.
    assert "arena[1040]" in text and "setp.ge.u32 %idle, %me, 64;" in main
    # The third one begins where the 30 groups of the first one ended.
    assert f"add.u32 %at, %own, {132 - 30};" in main


@DEVICES
def test_the_barrier_is_planned(device):
    network = mobilenet_v2_cifar()
    plain, one = (
        make_plan(Request(network, optimizer=SGD(0.1), batchnorm="batch", one_launch=one), device)
        for one in (False, True)
    )
    assert plain.storage.barrier is None
    assert one.storage.barrier and one.storage.barrier.nbytes == 64
    assert 64 <= one.peak_bytes - plain.peak_bytes <= 128  # aligned


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

import re
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

from edgelearn.errors import KernelError
from edgelearn.launch import Launch
from edgelearn.ops.constants import HEADERS
from edgelearn.runtime import Context, Kernels, kernels, list_devices
from edgelearn.runtime.kernels import build, for_sm_90a

FILES = sorted(path.name for path in kernels.kernels_folder().glob("*.cl"))


@pytest.fixture
def kernel_files(tmp_path, monkeypatch):
    """Writes files into a `kernels/` of its own."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "builtins.h").touch()
    monkeypatch.setattr(kernels, "kernels_folder", lambda: tmp_path)
    kernels.read_source.cache_clear()

    def write(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / (f"{name}.cl" if not name.startswith("h_") else f"include/{name}.h")
            path.write_text(text)

    yield write
    kernels.read_source.cache_clear()


def kernels_of(file: str) -> list[str]:
    """Names of the kernels in a file and the headers that it includes."""
    text = (kernels.kernels_folder() / file).read_text()
    headers = re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE)
    files = [kernels.kernels_folder() / "include" / header for header in headers if header not in HEADERS]
    texts = [text, *(file.read_text() for file in files)]
    return [name for text in texts for name in re.findall(r"^KERNEL (\w+)", text, re.MULTILINE)]


def test_folder_holds_the_kernels():
    assert (kernels.kernels_folder() / "include" / "blocked.h").is_file()
    assert isinstance(kernels.kernels_folder(), Path) and len(FILES) > 5


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_can_be_read_alone(file):
    names = kernels_of(file)
    assert names
    for name in names:
        text = kernels.read_source(file, name)
        assert re.findall(r"^KERNEL (\w+)", text, re.MULTILINE) == [name]
        assert '#include "' not in text


def test_no_kernel_is_called_like_a_function_of_opencl():
    """Drivers refuse that late and with no good message: a kernel `normalize` built, and could not be found."""
    builtins = "normalize distance length cross dot clamp mix step sign select max min any all exp log pow sqrt floor"
    assert not set(builtins.split()) & {name for file in FILES for name in kernels_of(file)}


def test_headers_come_once_and_before_what_needs_them(kernel_files):
    kernel_files(
        a='#include "h_x.h"\n#include "h_y.h"\nKERNEL one() {\n}\nKERNEL two() {\n  y\n}\n',
        h_x="// x\n",
        h_y='#include "h_x.h"\n// y\n',
    )
    assert kernels.read_source("a.cl", "two") == "// x\n// y\nKERNEL two() {\n  y\n}\n"


def test_unknown_kernel(kernel_files):
    kernel_files(a="KERNEL one() {\n}\n")
    with pytest.raises(KernelError, match=r"a\.cl.*'on'"):
        kernels.read_source("a.cl", "on")


def test_missing_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "edgelearn" / "launch" / "source.py"))
    with pytest.raises(KernelError, match=str(tmp_path)):
        kernels.kernels_folder.__wrapped__()


def test_a_kernel_that_does_not_compile(kernel_files):
    kernel_files(a="__kernel void one() {}\nKERNEL one() {\n  nonsense;\n}\n")
    launch = Launch("a.cl", "one", (("WIDTH", 3),), (1,), 1, ())
    with pytest.raises(KernelError, match=r"kernels/a\.cl.*-DWIDTH=3") as caught:
        Kernels(Context(list_devices()[0])).kernel(launch)
    assert "edgelearn devices" in str(caught.value)


def test_programs_are_shared_by_text_and_macros():
    kernels, told = Kernels(Context(list_devices()[0])), []
    three = Launch("optimizer.cl", "commit", (("CHUNK", 3),), (1,), 1, ())
    four = Launch("optimizer.cl", "commit", (("CHUNK", 4),), (1,), 1, ())
    other = Launch("optimizer.cl", "sgd", (("CHUNK", 3),), (1,), 1, ())
    kernels.compile([three, four, three, other], lambda *news: told.append(news))
    assert told == [(0, 3, "commit"), (1, 3, "commit"), (2, 3, "sgd"), (3, 3, "")]
    kernels.compile([four], lambda *news: told.append(news))
    assert len(told) == 4, "nothing was left to build"


# as it is, not as the tests share programs

SOURCE = "__kernel void fill(__global float *x) { x[get_global_id(0)] = VALUE; }"


@pytest.fixture(params=list_devices(), ids=lambda device: device.id)
def context(request, tmp_path, monkeypatch):
    monkeypatch.delenv("EDGELEARN_PROGRAMS")
    monkeypatch.setattr(kernels, "KEEP_THEIR_OWN", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Context(request.param)


def run(context, program):
    memory = context.allocate(64, "x")
    kernel = cl.Kernel(program, "fill")
    kernel.set_args(memory.handle)
    cl.enqueue_nd_range_kernel(context.queue, kernel, (16,), (1,))
    return set(context.read(memory.handle, np.empty(16, np.float32)))


def test_second_time_from_the_binary(context, monkeypatch):
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    (file,) = kernels.programs_folder().iterdir()
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(kernels.atomic, "keep", lambda *arguments: pytest.fail("compiled again"))
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    assert file.stat().st_mtime_ns == before


def test_options_make_another_program(context):
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    assert run(context, build(context, SOURCE, ["-DVALUE=4"])) == {4.0}


def test_another_rule_that_rewrites_ptx_makes_other_programs(context, monkeypatch):
    marked, plain = ([kernels.FOR_SM_90A], ["-DUNIT=MMA"])
    before = [kernels._program_name(context.device, SOURCE, options) for options in (marked, plain)]
    monkeypatch.setattr(kernels, "PTX_RULE", (*kernels.PTX_RULE, (rb"sm_90b", b"sm_90c")))
    after = [kernels._program_name(context.device, SOURCE, options) for options in (marked, plain)]
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("content", (b"", b"half", b"x" * 1000))
def test_a_broken_file_is_compiled_again(context, content):
    build(context, SOURCE, ["-DVALUE=3"])
    (file,) = kernels.programs_folder().iterdir()
    whole = file.read_bytes()
    file.write_bytes(content or whole[:-1])
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    assert len(file.read_bytes()) == len(whole)


def test_no_folder_to_keep_it_in(context, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}


def test_faults_of_the_text_are_told(context):
    with pytest.raises(cl.Error, match="nonsense"):
        build(context, "__kernel void fill() { nonsense; }")
    assert not kernels.programs_folder().exists()


def test_another_folder_or_none(context, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path / "mine"))
    build(context, SOURCE, ["-DVALUE=5"])
    assert len(list((tmp_path / "mine").iterdir())) == 1
    monkeypatch.setenv("EDGELEARN_PROGRAMS", "")
    assert run(context, build(context, SOURCE, ["-DVALUE=6"])) == {6.0}
    assert len(list((tmp_path / "mine").iterdir())) == 1 and not list(tmp_path.glob("edgelearn"))


def test_a_driver_that_finds_its_programs_again_is_asked_for_binaries_by_name(context, monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "KEEP_THEIR_OWN", (context.device.platform,))
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    assert not kernels.programs_folder().exists()
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path / "mine"))
    assert run(context, build(context, SOURCE, ["-DVALUE=3"])) == {3.0}
    assert len(list((tmp_path / "mine").iterdir())) == 1


@pytest.mark.parametrize("kept", (True, False))
def test_binaries_with_marked_instructions_are_rewritten(context, monkeypatch, kept):
    """Also where none is kept."""
    if not kept:
        monkeypatch.setenv("EDGELEARN_PROGRAMS", "")
    other = build(context, SOURCE, ["-DVALUE=3"]).get_info(cl.program_info.BINARIES)[0]
    monkeypatch.setattr(kernels, "for_sm_90a", lambda binary: other)
    assert run(context, build(context, SOURCE, ["-DVALUE=4"])) == {4.0}
    assert run(context, build(context, SOURCE, ["-DVALUE=5", kernels.FOR_SM_90A])) == {3.0}


PTX = b""".version 9.0
.target sm_90, texmode_independent
// a comment
\t// begin inline asm
\t//sm_90a: wgmma.fence.sync.aligned;
\t// end inline asm
"""


def test_instructions_replace_their_comments():
    assert (
        for_sm_90a(PTX)
        == b""".version 9.0
.target sm_90a, texmode_independent
// a comment
\t// begin inline asm
\twgmma.fence.sync.aligned;
\t// end inline asm
"""
    )


def test_other_targets_stay():
    assert for_sm_90a(b".target sm_80\n.target sm_90a\n") == b".target sm_80\n.target sm_90a\n"

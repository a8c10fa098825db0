import numpy as np
import pyopencl as cl
import pytest

from edgelearn.runtime import Context, kernels, list_devices
from edgelearn.runtime.kernels import build  # as it is, not as the tests share programs

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
    monkeypatch.setattr(kernels, "_save", lambda *arguments: pytest.fail("compiled again"))
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

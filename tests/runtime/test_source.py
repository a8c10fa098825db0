import re
from pathlib import Path

import pytest

from edgelearn.errors import KernelError
from edgelearn.launch import Launch
from edgelearn.ops.constants import HEADERS
from edgelearn.runtime import Context, Kernels, kernels, list_devices

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

"""The compiler of tests keeps objects, and compiles again what has changed."""

import os
import subprocess

import pytest

from edgelearn.bundles import native
from tests import compiler

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="needs a C compiler: gcc or clang")
MAIN = '#include "own.h"\nint other(void);\nint main(void) { return other() + OWN; }\n'


@pytest.fixture
def build(tmp_path):
    """Build a program, and return its result and how many sources were compiled."""
    for name in ("objects", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "other.c").write_text("int other(void) { return MORE; }\n")
    (tmp_path / "own" / "own.h").write_text('#include "number.h"\n#define OWN NUMBER\n')
    (tmp_path / "own" / "number.h").write_text("#define NUMBER 1\n")

    def built(*options):
        before = len(os.listdir(tmp_path / "objects"))
        words = "-O0", "-I", str(tmp_path / "own"), *options, str(tmp_path / "main.c"), str(tmp_path / "other.c")
        program = str(tmp_path / "program")
        status = compiler.main(native.compiler(), str(tmp_path / "objects"), "-o", program, *words, "-lm")
        found = subprocess.run([program]).returncode if status == 0 else None
        return found, len(os.listdir(tmp_path / "objects")) - before

    return built


def test_only_what_has_changed_is_compiled_again(build, tmp_path):
    assert build("-DMORE=2") == (3, 2)
    assert build("-DMORE=2") == (3, 0)
    assert build("-DMORE=3") == (4, 1), "a macro that one of them reads"
    assert build("-DMORE=3", "-O1") == (4, 2), "other options"
    (tmp_path / "own" / "number.h").write_text("#define NUMBER 5\n")
    assert build("-DMORE=3") == (8, 1), "a header that a header of a folder includes"
    (tmp_path / "other.c").write_text("int other(void) { return 0; }\n")
    assert build("-DMORE=3") == (5, 1), "a source"


def test_warnings_are_said_each_time(build, tmp_path, capfd):
    (tmp_path / "other.c").write_text("int other(void) { int unread = 3; return 2; }\n")
    for options in ((), ("-Wall",), ("-Wall",), ("-Wall", "-Werror")):
        found, _ = build(*options)
        assert found == (None if "-Werror" in options else 3)
        assert ("unread" in capfd.readouterr().err) == ("-Wall" in options)


def test_what_does_not_compile_leaves_nothing(build, capfd):
    assert build() == (None, 1), "the first source compiles"
    assert "MORE" in capfd.readouterr().err

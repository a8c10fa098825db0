import subprocess
import sys

import pytest

from edgelearn.errors import EdgelearnError
from edgelearn.lab.bench.contenders import CONTENDERS, Entry, choose


def test_a_contender_that_is_not_installed_says_what_it_needs():
    entry = Entry("ghost", "nowhere:Ghost", {"numpy": "numpy", "no_such_module": "no-such-package"})
    assert not entry.available() and entry.missing() == ["no-such-package"]
    assert Entry("numpy", "numpy:ndarray", {"numpy": "numpy"}).available()


def test_asking_for_contenders_imports_none_of_them():
    code = """
import sys
from edgelearn.lab.bench import contenders, run
[entry.available() for entry in contenders.CONTENDERS]
print({"torch", "keras", "tensorflow", "tinygrad", "rich", "pyopencl"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_choosing_by_name():
    assert [entry.name for entry in choose(["tinygrad", "torch"])] == ["torch", "tinygrad"]
    assert choose(None) == list(CONTENDERS)
    with pytest.raises(EdgelearnError, match="jax"):
        choose(["torch", "jax"])

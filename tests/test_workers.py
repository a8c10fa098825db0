import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIES = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    if number == 1 and {dies}:
        os._exit(9)
"""


def test_a_process_that_dies_names_its_test_and_the_rest_goes_on(tmp_path):
    for file in range(5):
        (tmp_path / f"test_{file}.py").write_text(DIES.format(dies=file in (1, 3, 4)))
    options = (
        "-p",
        "xdist",
        "-p",
        "tests.workers",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        ".",
    )
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert "INTERNALERROR" not in ran.stdout
    died = re.findall(r"worker '\w+' crashed while running '(?:.*/)?(test_\d\.py::test_it\[1\])'", ran.stdout)
    assert sorted(set(died)) == ["test_1.py::test_it[1]", "test_3.py::test_it[1]", "test_4.py::test_it[1]"]
    assert "3 failed, 17 passed" in ran.stdout

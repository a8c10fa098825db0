"""Models that come and go leave no memory behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, os, sys
import edgelearn as el
from tests.train.toys import examples, frozen_stem

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

x, y = examples(10)
warm, more = map(int, sys.argv[1:])
for number in range(warm + more):
    model = el.Model(frozen_stem()).compile(el.Adam(0.01))
    model.fit(x, y, 10)
    model.predict(x)
    del model
    if number + 1 == warm:
        gc.collect()
        before = resident()
gc.collect()
print(resident() - before)
"""


def growth(warm: int, more: int) -> int:
    """Bytes that a process grows by while `more` models are made, used and deleted, after `warm` others."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", SCRIPT, str(warm), str(more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is counted from /proc")
def test_memory_does_not_grow():
    """The full count is 100 and 1,100 models, at most 10 MiB; 98 KiB a model would be 3.8 MiB here. The allocator's own
    growth isn't a leak."""
    assert growth(60, 40) < 3 << 20

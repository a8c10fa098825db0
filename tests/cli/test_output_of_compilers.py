import os
import subprocess
import sys

TRAINING = """
import numpy as np
import edgelearn as el
from edgelearn.compile.precision import named_precision
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D, ReLU

network = el.Network("small", (8, 8, 3))
for op in (Conv2D(16, 3), ReLU(), GlobalAveragePooling2D(), Dense(3)):
    network.add(f"{type(op).__name__}{len(network.nodes)}", op)
model = el.Model(network)
x, y = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype(np.float32), np.arange(2)
for precision in (None, named_precision("int8")):
    model.compile(el.SGD(0.01), precision=precision)
    model.fit(x, y, batch_size=2, epochs=1, verbose=0)
print(model.device.units)
"""


def test_nothing_of_a_compiler_reaches_the_terminal(tmp_path):
    """All kernels are compiled, and the processor's units tried."""
    environment = os.environ | {"POCL_CACHE_DIR": str(tmp_path), "EDGELEARN_PROGRAMS": ""}
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 300}
    ran = subprocess.run([sys.executable, "-c", TRAINING], **options)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert len(ran.stdout.splitlines()) == 1, ran.stdout

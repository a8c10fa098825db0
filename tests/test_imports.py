"""What `import edgelearn` costs: nothing that a caller who doesn't need it has to wait for."""

import os
import subprocess
import sys

LIMIT = 5.0  # times what NumPy takes, which is a part of it: 0.3 s on a slow machine
HEAVY = ("tensorflow", "matplotlib", "h5py", "PIL", "scipy")


def in_fresh_process(code: str, python=(sys.executable,)) -> str:
    """What `code` prints. Bytecode is kept, as it is for users: without it Python compiles the package each time."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    options = {"check": True, "capture_output": True, "text": True, "env": environment}
    return subprocess.run([*python, "-c", code], **options).stdout


def test_import_is_quick():
    code = (
        "import time; start = time.perf_counter(); import numpy; between = time.perf_counter(); import edgelearn; "
        "print((time.perf_counter() - start) / (between - start))"
    )
    measured = []
    while min(measured, default=LIMIT) >= LIMIT and len(measured) < 10:  # other processes may disturb some
        measured.append(float(in_fresh_process(code)))
    assert min(measured) < LIMIT, f"import edgelearn takes {measured} times NumPy's: see python -X importtime"


def test_import_leaves_heavy_packages_alone():
    loaded = in_fresh_process("import sys, edgelearn; print(*sys.modules)").split()
    assert "edgelearn" in loaded
    assert not [name for name in HEAVY if name in loaded]


def test_no_room_needs_posix(python_with_tensorflow):
    """fcntl and resource are not there on every system. What psutil and filelock import is their affair."""
    code = (
        "import sys, pkgutil, importlib, os\n"
        "import psutil, filelock\n"
        "sys.modules['fcntl'] = sys.modules['resource'] = None\n"
        "for name in ('sched_setaffinity', 'sched_getaffinity', 'posix_fallocate', 'O_CLOEXEC'):\n"
        "    os.__dict__.pop(name, None)\n"
        "import edgelearn\n"
        "for module in pkgutil.walk_packages(edgelearn.__path__, 'edgelearn.'):\n"
        "    if not any(name in module.name for name in ('torch', 'tinygrad', '__main__')):\n"
        "        importlib.import_module(module.name)\n"
        "print(edgelearn.list_devices()[0].kind)"
    )
    assert in_fresh_process(code, python_with_tensorflow).split()


def test_commands_need_no_package_of_an_extra():
    """Whoever installs the package alone has all commands; each says what it lacks when it comes to that."""
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('anywidget', 'ipywidgets', 'jupyter_server', 'plotly', 'tensorflow', 'soundfile', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        "import edgelearn.cli\n"
        "for module in pkgutil.iter_modules(edgelearn.cli.__path__, 'edgelearn.cli.'):\n"
        "    if module.name != 'edgelearn.cli.__main__':\n"
        "        importlib.import_module(module.name)\n"
        "print('loaded')"
    )
    assert in_fresh_process(code).split() == ["loaded"]

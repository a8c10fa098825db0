"""A client of a federation beside a bundle, in C: its sources, and the program that this machine's compiler makes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgelearn.errors import DeviceError, RunError

from .native import WARNINGS, compiler
from .write import RUNTIME

FOLDER, PROGRAM = "client", "client"  # in the bundle's folder, and in that one


def write_client(bundle: str | Path) -> Path:
    """Write the client's sources into the folder `client` of a bundle for target opencl or c; returns that folder.

    Raises RunError if they can't be written.
    """
    folder = Path(bundle) / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        for source in sorted((RUNTIME / FOLDER).iterdir()):
            shutil.copyfile(source, folder / source.name)
    except OSError as error:
        raise RunError(f"The client can't be written to {folder} ({error.strerror}): name another folder.") from None
    return folder


def compile_client(bundle: str | Path, options: Sequence[str] = ("-O3",)) -> Path:
    """Compile the client of a bundle and return the program's path.

    Arguments:
    - `bundle`: folder of a bundle that has a client.
    - `options`: of the compiler.

    Raises DeviceError without a C compiler, or with what the compiler says.
    """
    if (found := compiler()) is None:
        raise DeviceError("Clients are compiled by a C compiler, and there is none: install gcc or clang.")
    folder = Path(bundle) / FOLDER
    sources = [*sorted(folder.glob("*.c")), *(p for p in sorted(folder.parent.glob("*.c")) if p.name != "main.c")]
    program = folder / PROGRAM
    command = [found, *WARNINGS, *options, "-I", folder.parent, "-o", program, *sources, "-lm", "-ldl"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise DeviceError(f"{found} did not compile {folder}:\n{done.stderr}")
    return program

"""Source text of kernels, with includes expanded."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from edgelearn.errors import KernelError

INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
FUNCTION = re.compile(r"^KERNEL (\w+)\(.*?^}\n", re.MULTILINE | re.DOTALL)
NO_BUILTINS = "-D_OPENCL_H_"  # Clang's guard of the header that declares all built-in functions


@cache
def folder() -> Path:
    """`kernels/` inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "kernels", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise KernelError(f"The OpenCL kernels are missing next to {package}: reinstall edgelearn.")


@cache
def read(name: str, kernel: str) -> str:
    """Return the text of one kernel with its headers, without other kernels there, which drivers would compile.

    Arguments:
    - `name`: a file in `kernels/`, or the absolute path of another one; headers next to it take precedence.

    Raises KernelError if the file and its headers have no such kernel.
    """
    path, seen = folder() / name, set[str]()

    def expand(text: str) -> str:
        return INCLUDE.sub(lambda match: header(match[1]), text)

    def header(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        own = path.with_name(file)
        return expand((own if own.is_file() else folder() / "include" / file).read_text())

    text = expand(path.read_text())
    if kernel not in (match[1] for match in FUNCTION.finditer(text)):
        raise KernelError(f"{path} has no kernel '{kernel}'.")
    return FUNCTION.sub(lambda match: match[0] if match[1] == kernel else "", text)


def builtins() -> str:
    """Return declarations of the built-in functions that kernels call, for programs compiled with NO_BUILTINS."""
    return (folder() / "include" / "builtins.h").read_text()

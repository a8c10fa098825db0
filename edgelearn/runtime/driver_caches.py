"""The caches of OpenCL drivers: where they lie, and what to do where they can't."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from edgelearn import caches

POCL_CACHE = "POCL_CACHE_DIR"  # environment variable
NO_PYOPENCL_CACHE = "PYOPENCL_NO_CACHE"


def pocl_folder() -> Path:
    """Where PoCL keeps compiled kernels, as PoCL looks for it."""
    if named := os.environ.get(POCL_CACHE):
        return Path(named)
    home, own = os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME")
    parent = Path(own) if own else Path(home, ".cache") if home else Path("/tmp")
    return parent / "pocl" / "kcache"


@cache
def prepare() -> caches.Place:
    """Give PoCL a folder that it can write, before it starts: without one it reports no device, and on a full disk it
    ends the process. Return that folder, which PoCL keeps."""
    if os.environ.get(POCL_CACHE) == "":  # unset by a shell or by make; PoCL takes it for a folder without a name
        del os.environ[POCL_CACHE]
    found = caches.place(pocl_folder(), POCL_CACHE)
    if found.problem and found.folder:
        found.folder.mkdir(parents=True, exist_ok=True)
        os.environ[POCL_CACHE] = str(found.folder)
    return found


def import_pyopencl() -> Any:
    """Import pyopencl without its own cache, an SQLite file that ends in errors where it can't be written. It holds
    Python code that is made in a millisecond: here it is kept in memory, or each kernel object would leave its own."""
    chosen = NO_PYOPENCL_CACHE in os.environ
    os.environ.setdefault(NO_PYOPENCL_CACHE, "1")
    try:
        import pyopencl
    finally:
        if not chosen:  # other processes choose for themselves
            del os.environ[NO_PYOPENCL_CACHE]
    _keep_generated_code()
    return pyopencl


@cache
def _keep_generated_code() -> None:
    """Have pyopencl generate the code that calls a kernel once for each signature, not for each kernel object."""
    from pyopencl import invoker

    name = "_generate_enqueue_and_set_args_module"
    if generate := getattr(invoker, name, None):  # a private function, which another version may not have
        setattr(invoker, name, cache(generate))

"""The laboratory: runs, benchmarks, profiles, tuning. In notebooks, `el.lab` has a function for each experiment, too,
such as `el.lab.precision()` (edgelearn.widgets.pages)."""

from importlib import import_module
from typing import Any

_PAGES = "edgelearn.widgets.pages"  # lies higher, and is imported when one of its functions is asked for


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        modules = import_module(_PAGES).MODULES
        if name in modules:
            return getattr(import_module(modules[name]), name)
    raise AttributeError(f"module 'edgelearn.lab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *import_module(_PAGES).MODULES]

"""Modules in files of one's own, outside the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def import_own(folder: Path, name: str, **texts: str) -> ModuleType:
    """Write `texts` to files called `name`, by their suffixes, and import `name`.py."""
    for suffix, text in texts.items():
        (folder / f"{name}.{suffix}").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

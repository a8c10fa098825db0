"""Types of files for argparse: refused before any work if they can't be written."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def written(text: str) -> Path:
    """A type: a file to write, in a folder that exists."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder: name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' can't be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' can't be written: the folder {path.parent} doesn't allow it")
    return path

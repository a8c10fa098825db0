"""The commands that make the networks which come with the package."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path


@dataclass(frozen=True)
class Pretraining:
    """settings: what was chosen, by name, `seed` and `device` among it. output: the file to write. command: what makes
    the same file."""

    settings: dict
    output: Path
    command: str


def parse(
    prog: str, description: str, counts: Mapping[str, tuple[int, str]], output: Path,
    arguments: Sequence[str] | None = None,
) -> Pretraining:  # fmt: skip
    """The command line of `prog`, with an option for each of `counts`, which are their defaults and what is said of
    them, and `output` as the file that is written unless another is named."""
    parser = argparse.ArgumentParser(prog, description=description)
    add = partial(parser.add_argument, type=int)
    for name, (default, text) in counts.items():
        add(f"--{name}", default=default, help=f"{text} (default: %(default)s)".strip())
    add("--seed", default=0)
    add("--output", type=Path, default=output, help="default: the file that the sample uses")
    add("--device", type=str, metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    chosen = vars(parser.parse_args(arguments))
    path = chosen.pop("output")
    options = " ".join(f"--{name} {value}" for name, value in chosen.items() if value is not None)
    return Pretraining(chosen, path, f"{prog} {options}")

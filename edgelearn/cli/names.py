"""Types of names for argparse: what stands for nothing is refused before any work, with the nearest names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from edgelearn.compile.memory.budget import budgets
from edgelearn.errors import EdgelearnError
from edgelearn.extensions import import_object, is_reference, nearest

TYPES = "fp32", "tf32", "bf16", "fp16", "int8"
NETWORK = "a name of edgelearn.models, a model file, or MODULE:FUNCTION"


def network(text: str) -> str:
    """A type: what `edgelearn.interop.find_network` finds."""
    from edgelearn.interop import check_network_name

    return _checked(text, check_network_name)


def device(text: str) -> str:
    """A type: part of the name of a device that is there."""
    from edgelearn.runtime import choose_device

    return _checked(text, choose_device)


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device NAME."""
    parser.add_argument(
        "--device",
        type=device,
        metavar="NAME",
        help="any part of its name (default: the best; see `edgelearn devices`)",
    )


def budget(text: str) -> str:
    """A type: a limit on memory."""
    return _checked(text, budgets)


def one_of(names: Iterable[str], what: str) -> Callable[[str], str]:
    """A type: one of `names`, or MODULE:CLASS."""
    known = list(names)

    def parse(text: str) -> str:
        if text in known:
            return text
        if is_reference(text):
            return _checked(text, import_object)
        raise argparse.ArgumentTypeError(
            f"there is no {what} '{text}'.{nearest(text, known)} Choose {', '.join(known)}, or MODULE:CLASS"
        )

    return parse


def add_compute(parser: argparse.ArgumentParser) -> None:
    """Add --compute."""
    parser.add_argument(
        "--compute", nargs="+", choices=TYPES, default=["fp32"], metavar="TYPE",
        help="types to compute in: fp32, tf32, bf16, fp16, or int8 with ranges in hindsight (default: fp32)",
    )  # fmt: skip


def _checked(text: str, check: Callable[[str], object]) -> str:
    try:
        check(text)
    except EdgelearnError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text

"""Registries of classes: files name the class of an op, a number format or a learner, and are read by that name."""

from typing import TypeVar

from edgelearn.errors import ExtensionError

T = TypeVar("T")


def enter(registry: dict[str, type[T]], name: str, cls: type[T], what: str) -> None:
    """Enter a class into a registry under the name that files have for it. A class that is defined again, as by a
    notebook's cell, takes the place of itself.

    Arguments:
    - `registry`: classes by name.
    - `name`, `cls`: the entry.
    - `what`: what the registry is of, such as "the op".

    Raises ExtensionError if another class has the name.
    """
    own, known = (f"{each.__module__}.{each.__qualname__}" for each in (cls, registry.get(name, cls)))
    if own != known:
        raise ExtensionError(
            f"{own} can't be {what} '{name}': {known} is it already, and saved files mean that one. Rename yours."
        )
    registry[name] = cls

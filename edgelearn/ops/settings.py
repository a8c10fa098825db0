"""Checks of numbers that users give: a wrong type is refused by name, not by Python in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from inspect import Signature, signature
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

from edgelearn.errors import EdgelearnError, PlanError

# The arguments to use instead of those of Keras and PyTorch that layers and optimizers don't have.
ELSEWHERE = {
    "activation": "an activation is a layer of its own: network.add('relu', ReLU()).",
    "name": "a layer is named where it is added: network.add('name', op).",
    "input_shape": "the network has it: Network('name', (height, width, channels)).",
    "kernel_regularizer": "kernels shrink by the optimizer's weight_decay=….",
    "bias_regularizer": "kernels alone shrink, by the optimizer's weight_decay=….",
    "trainable": "layers are frozen by network.freeze('name').",
    "lr": "it is learning_rate.",
    "bias": "it is use_bias.",
    "padding_mode": "other paddings than with zeros are a layer Pad before it.",
    "nesterov_momentum": "it is nesterov.",
}


class InitSignature:
    """Makes `inspect.signature` of a class that has a `__new__` give the arguments of its `__init__`."""

    def __get__(self, _: object, kind: type) -> Signature:
        found = signature(kind.__init__)
        return found.replace(parameters=list(found.parameters.values())[1:])


def check_arguments(kind: type, given: Iterable[str], error: type[EdgelearnError]) -> None:
    """Raises `error`, which says what to write instead, for an argument that the dataclass `kind` doesn't have."""
    known = [field.name for field in fields(kind) if field.init]
    for name in given:
        if name not in known:
            like = [f"did you mean {each}?" for each in get_close_matches(name, known, 1)]
            hint = ELSEWHERE.get(name, *like or [f"there are {', '.join(known) or 'none'}."])
            raise error(f"{kind.__name__} has no argument {name}: {hint}")


def is_number(value: Any) -> bool:
    """True for a real number that is finite; a bool is none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def whole(name: str, value: Any, least: int = 1, error: type[EdgelearnError] = PlanError) -> int:
    """Return `value` as an int. Raises `error` unless it is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"{name} is a whole number of at least {least}, not {value!r:.60}.")
    return int(value)


def number(
    name: str, value: Any, least: float = -inf, below: float = inf, error: type[EdgelearnError] = PlanError
) -> float:
    """Return `value` as a float. Raises `error` unless it is a finite number from `least` to below `below`."""
    if not is_number(value) or not least <= value < below:
        limits = [f"at least {least:g}"] * (least > -inf) + [f"below {below:g}"] * (below < inf)
        raise error(f"{name} is a finite number{''.join(f' {limit}' for limit in limits[:1])}"
                    f"{''.join(f' and {limit}' for limit in limits[1:])}, not {value!r:.60}.")  # fmt: skip
    return float(value)

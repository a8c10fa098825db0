"""How formats write operators: a table of names for each format.

What an operator means stands once for all formats, in `operators` and `shapes`: a function of a builder, of operands,
and of settings, which are keyword arguments. An op of the engine that computes each value by itself needs no function.
A format's table says what it calls an operator, which operand each input is, and what it calls the settings.

>>> HANDLERS = forms(
...     {
...         "Conv": "conv x kernel:OIHW bias",
...         "LeakyRelu": ("LeakyReLU", {"negative_slope": "alpha=0.01"}),
...         "Max": "maximum *",
...         "Mish": "Mish",
...     },
...     strides="strides", dilation="dilations", groups="group", channels=1,
... )

Writers read the same table backwards: `kinds_of` has the format's name of an operator, `Form.written` its inputs in the
file's order, and its attributes. A setting that reading converts has both directions in the table, a `Both`.
"""

from __future__ import annotations

import inspect
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from math import isclose
from typing import Any

import numpy as np

from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.ops import Op

from . import operators, shapes
from .builder import Builder, Operand, Value
from .canonical import Operator


def known(x: Any, what: str) -> np.ndarray:
    """An operand that has to be constant. Raises UnsupportedError if it is not."""
    if not isinstance(x, np.ndarray):
        what = "input" if what == "x" else what
        raise UnsupportedError(f"Its {what} is computed, or missing.", "A constant.")
    return x


def integers(x: Any, what: str = "shape") -> list[int]:
    """Whole numbers: a constant, or a setting."""
    values = np.atleast_1d(known(x, what)).reshape(-1) if isinstance(x, Value | np.ndarray) else np.atleast_1d(x)
    return [int(n) for n in values]


def number(x: Any, what: str = "value") -> float:
    """A number: a constant, or a setting."""
    return float(known(x, what).reshape(()) if isinstance(x, Value | np.ndarray) else x)


def computed(x: Any, what: str = "input") -> Value:
    """An operand that has to be computed by the network. Raises UnsupportedError for a constant."""
    if isinstance(x, np.ndarray):
        what = "input" if what == "x" else what
        raise UnsupportedError(f"Its {what} is a constant.", "An input that depends on the network's.")
    return x


def pair(x: Any, what: str, op: Operator, image: Operand, missing: int = 1) -> tuple[int, int]:
    """Numbers for height and width; for a sequence, which is an image of height 1, the width alone. `missing`: the
    height's number then, and the least that there can be."""
    numbers = [x] if isinstance(x, int) else list(x)
    axes = len(image.shape) - 2
    if len(numbers) == 1:
        numbers = [missing, *numbers] if axes == 1 else numbers * 2
    if len(numbers) != 2:
        raise UnsupportedError(f"{axes} spatial axes, {what}={x}.", "Images (2) and sequences (1).")
    if any(not isinstance(n, int | np.integer) or n < missing for n in numbers):
        raise FormatError(f"{op.kind} '{op.name}' has {what}={x}: the file is damaged.")
    return int(numbers[0]), int(numbers[1])


def pairs(x: Any) -> np.ndarray:
    """(before, after) for each axis, or, in a row, all numbers before and all numbers after."""
    return np.reshape(x, (2, -1)).T if np.ndim(x) == 1 else np.asarray(x)


# Conversions of an input or an attribute, by the annotation of the argument
READ: dict[str, Callable[[Any, str, Operator, Any], Any]] = {
    "Value": lambda x, what, op, image: computed(x, what),
    "Operand": lambda x, what, op, image: x if isinstance(x, Value | np.ndarray) else np.asarray(x, np.float32),
    "Array": lambda x, what, op, image: known(x, what),
    "Sequence[int]": lambda x, what, op, image: integers(x, what),
    "int": lambda x, what, op, image: integers(x, what)[0],
    "float": lambda x, what, op, image: number(x, what),
    "bool": lambda x, what, op, image: bool(x),
    "Sequence[Pair]": lambda x, what, op, image: pairs(known(x, what) if isinstance(x, Value | np.ndarray) else x),
    "Pair": pair,
    "Margin": partial(pair, missing=0),
}


def _same(value: Any, found: Any) -> bool:
    """True if two settings are alike, but for the precision of a file's numbers."""
    return found == value or (isinstance(found, float) and isclose(found, value, rel_tol=1e-4))


@dataclass(frozen=True)
class Only:
    """The only value of an attribute with which an operator is read.

    Arguments:
    - `value`: that value; numbers need only be close to it.
    - `nearest`: what works instead of others.
    - `reason`: what is wrong with others (default: the attribute and its value).
    - `default`: what stands for an attribute that is left out (default: `value`).
    """

    value: Any
    nearest: str = ""
    reason: str = ""
    default: Any = None

    def check(self, op: Operator, name: str) -> None:
        """Raises UnsupportedError for another value."""
        found = op.attributes.get(name)
        found = self.default if found is None else found
        if found is not None and not _same(self.value, found):
            raise UnsupportedError(self.reason or f"{name}={found!r:.60}.", self.nearest)


@dataclass(frozen=True)
class Both:
    """A setting that a format has in another form.

    Arguments:
    - `read`: a function of the operator and of the operand x, which returns the setting.
    - `write`: a function of the setting, which returns attributes by name.
    """

    read: Callable[[Operator, Any], Any]
    write: Callable[[Any], Mapping[str, Any]]

    def __call__(self, op: Operator, image: Operand | None) -> Any:
        return self.read(op, image)


@dataclass(frozen=True)
class Form:
    """How a format writes an operator; it is the operator's handler.

    Arguments:
    - `kind`: the format's name for it.
    - `name`: of its meaning.
    - `meaning`: a function of a builder and the arguments, or the class of an op that computes each value by itself.
    - `inputs`: the argument that each input is, in the file's order; "kernel:OHWI" is a kernel with its axes in this
      order, "*values" all inputs that are left; "*" alone are any number of inputs, which are joined two by two.
    - `names`: for other arguments, the attribute's name (default: the argument's), such as "alpha", "alpha=0.01" with
      what stands for one that is left out, or "stride_h stride_w" for a pair; a function of the operator and of the
      operand x, which a `Both` has with its opposite; or a value. An attribute itself may be restricted by an `Only`.
    - `after`: a function of the builder, the operator and its result, such as for the activation in which it ends.
    """

    kind: str
    name: str
    meaning: Callable[..., Any]
    inputs: tuple[str, ...]
    names: Mapping[str, Any]
    after: Callable[[Builder, Operator, Any], Any] | None = None

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The arguments, with what is made of their inputs or attributes."""
        found = inspect.signature(self.meaning).parameters
        known = {"b", *getattr(self.meaning, "keywords", ())}
        return {name: str(p.annotation).removesuffix(" | None") for name, p in found.items() if name not in known}

    def __call__(self, b: Builder, op: Operator, *inputs: Operand | None) -> Any:
        for name, spec in self.names.items():
            if isinstance(spec, Only):
                spec.check(op, name)
        if self.inputs == ("*",):
            return reduce(lambda x, y: self.apply(b, op, {"x": x, "y": y}), inputs)
        found = self.apply(b, op, self.operands(b, inputs))
        return self.after(b, op, found) if self.after else found

    def operands(self, b: Builder, inputs: Sequence[Operand | None]) -> dict[str, Any]:
        """The inputs by argument. Raises TypeError if there are too many."""
        names, given = list(self.inputs), dict[str, Any]()
        for place, name in enumerate(names):
            if name[0] == "*":
                end = len(inputs) - len(names) + place + 1
                given[name[1:]] = inputs[place:end]
                names, inputs = names[:place] + names[place + 1 :], (*inputs[:place], *inputs[end:])
                break
        if len(inputs) > len(names):
            raise TypeError(f"{len(inputs)} inputs instead of {len(names)}")
        for form, x in zip(names, inputs, strict=False):
            name, _, axes = form.partition(":")
            if x is not None:
                given[name] = _as_keras(known(x, name), axes) if axes else x
        return given

    def apply(self, b: Builder, op: Operator, given: dict[str, Any]) -> Any:
        """Return the operator's result. `given`: inputs by argument; the other arguments are attributes."""
        image = given.get("x")
        for name in [name for name in self.parameters if name not in given]:
            spec = self.names.get(name, name)
            if not isinstance(spec, Only) and (value := attribute(op, spec, image)) is not None:
                given[name] = value
        for name, value in given.items():
            if value is not None and (read := READ.get(self.parameters.get(name, ""))):
                given[name] = read(value, name, op, image)
        if isinstance(self.meaning, type):
            x = given.pop("x")
            return operators.activation(b, x, self.meaning(**given))
        return self.meaning(b, **given)

    def written(self, given: Mapping[str, Any]) -> tuple[list[tuple[str, str, Any]], dict[str, Any]]:
        """Return the operator's inputs in the file's order, as (argument, order of a kernel's axes, value), and its
        attributes: the opposite of `operands` and `apply`. `given`: operands and settings by argument."""
        rest, inputs = dict(given), list[tuple[str, str, Any]]()
        for form in ("x", "y") if self.inputs == ("*",) else self.inputs:
            name, _, axes = form.lstrip("*").partition(":")
            value = rest.pop(name, None)
            inputs += [(name, "", each) for each in value] if form[1:] and form[0] == "*" else [(name, axes, value)]
        while inputs and inputs[-1][2] is None:
            inputs.pop()
        return inputs, self.attributes(**rest)

    def attributes(self, **settings: Any) -> dict[str, Any]:
        """Settings under the format's names. Raises FormatError for one that it doesn't have."""
        found = {}
        for argument, value in settings.items():
            spec = self.names.get(argument, argument)
            if isinstance(spec, Both):
                found |= spec.write(value)
            elif isinstance(spec, str):
                names = [part.partition("=")[0] for part in spec.split()]
                found |= dict(zip(names, value if len(names) > 1 else [value], strict=True))
            elif not _same(spec.value if isinstance(spec, Only) else spec, value):
                raise FormatError(f"{self.kind} can't be written with {argument}={value}.")
        return found


def as_file(axes: str) -> tuple[int, ...]:
    """The order that gives a kernel, (height, width, inputs, filters) or (inputs, filters), these axes."""
    return tuple("HWIO"[-len(axes) :].index(axis) for axis in axes)


def forms(
    table: Mapping[str, Any], *, same: str = "", after: Callable[[Builder, Operator, Any], Any] | None = None,
    form: type[Form] = Form, **names: Any,
) -> dict[str, Form]:  # fmt: skip
    """Make a format's handlers, by its names of operators.

    Arguments:
    - `table`: by name, what the operator means: the name of a function of `operators` or `shapes`, or of an op's class,
      with the operands in the file's order if that is another ("split axis x"). A tuple of that, of the function that
      reads it where the format differs (default: the meaning's own), and of other names of settings. A function and a
      text of operands are an operator of the format alone.
    - `same`: operators that the format calls as they are called here, but for capitals and underscores (default none).
    - `after`: as of Form, for all operators (default none).
    - `form`: class of the handlers (default Form).
    - `names`: as of Form, for all operators that have such an argument.
    """
    meanings = {**Op.registry, **MEANINGS}
    known = {_plain(name): name for name in meanings}
    made = {}
    for kind, entry in {**{kind: known[_plain(kind)] for kind in same.split()}, **table}.items():
        first, *rest = entry if isinstance(entry, tuple) else (entry,)
        own = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        if isinstance(first, str):
            name, *inputs = first.split()
            meaning = rest[0] if rest else meanings[name]
        else:
            name, inputs, meaning = first.__name__, "".join(rest).split(), first
        made[kind] = form(kind, name, meaning, tuple(inputs or operands_of(meaning)), {**names, **own}, after)
    return made


MEANINGS: dict[str, Any] = {**vars(shapes), **vars(operators)}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def operands_of(meaning: Callable[..., Any]) -> list[str]:
    """The operands of a function in order; all others are settings."""
    if isinstance(meaning, type):
        return ["x"]
    found = inspect.signature(meaning).parameters
    names = [name for name, p in found.items() if name != "b" and p.kind == p.POSITIONAL_OR_KEYWORD]
    return ["*" * found[name].annotation.startswith("Sequence[Operand]") + name for name in names]


def by_meaning(handlers: Mapping[str, Any]) -> dict[str, Form]:
    """A format's operators by what they mean; of several the first."""
    return {form.name: form for form in reversed(list(handlers.values())) if isinstance(form, Form)}


def kinds_of(handlers: Mapping[str, Any]) -> dict[str, str]:
    """A format's names of operators by what they mean, such as {"conv": "Conv", "LeakyReLU": "LeakyRelu"}."""
    return {name: form.kind for name, form in by_meaning(handlers).items()}


def arguments(name: str, operands: Sequence[Any]) -> dict[str, Any]:
    """Operands of a meaning, in its order, by argument."""
    names = operands_of(MEANINGS.get(name, Op))
    if names[0][0] == "*":
        return {names[0][1:]: operands}
    return dict(zip(names, operands, strict=False))


def attribute(op: Operator, spec: Any, image: Operand | None = None) -> Any:
    """A setting of an operator, as a Form names it; None if it is left out."""
    if callable(spec) and not isinstance(spec, type):
        return spec(op, image)
    if not isinstance(spec, str):
        return spec
    found = []
    for part in spec.split():
        name, _, default = part.partition("=")
        value = op.attributes.get(name)
        found.append(literal_eval(default) if value is None and default else value)
    return found[0] if len(found) == 1 else None if None in found else tuple(found)


def _as_keras(kernel: np.ndarray, axes: str) -> np.ndarray:
    """A kernel whose axes have this order as (height, width, inputs, filters), or (inputs, filters). One of sequences
    has no height, and gets one of 1."""
    if kernel.ndim == len(axes) - 1:
        kernel = np.expand_dims(kernel, axes.index("H"))
    if kernel.ndim != len(axes):
        raise UnsupportedError(f"Its kernel has {kernel.ndim} axes.", "Images and sequences.")
    return kernel.transpose([axes.index(axis) for axis in "HWIO" if axis in axes])

"""A model file as its format writes it: operators, constants, inputs and outputs, before anything is translated.

`fuse_dilated` joins dilated convolutions as TensorFlow spells them: SpaceToBatchND, a convolution, BatchToSpaceND.
`Problem`s are operators without a counterpart, collected so that one error lists them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import FormatError, UnsupportedError

Size = int | None  # None: the file leaves it open


@dataclass(frozen=True)
class StoredIntegers:
    """The integers of a tensor: value = scale * (integer - zero_point).

    Arguments:
    - `scale`: float32, of one value or one for each index of `axis`.
    - `zero_point`: integers of the same shape.
    - `axis`: of the tensor, for scales of more than one value (default 0).
    - `dtype`: type of the integers (default "int8").
    """

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int = 0
    dtype: str = "int8"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the file describes it.

    Arguments:
    - `name`: unique in the file.
    - `shape`: as in the file; None for an open size, or instead of the whole shape.
    - `dtype`: NumPy's name of its type (default "float32").
    - `layout`: "NHWC" or "NCHW" for images and sequences, else "" (default). The network's inputs and outputs have
      channels last either way.
    - `quantization`: scale and zero point (default none).
    - `is_state`: True if it keeps its value from one call to the next (default False).
    - `batch_axis`: axis of the batch (default the first), None if there is none: the whole is one example.
    """

    name: str
    shape: tuple[Size, ...] | None
    dtype: str = "float32"
    layout: str = ""
    quantization: StoredIntegers | None = None
    is_state: bool = False
    batch_axis: int | None = 0

    @property
    def example(self) -> tuple[Size, ...]:
        """The sizes without the batch; none of a shape that isn't known."""
        return tuple(n for axis, n in enumerate(self.shape or ()) if axis != self.batch_axis)


@dataclass(frozen=True)
class Operator:
    """One operation of the file.

    Arguments:
    - `kind`: the format's name for it, such as "Conv".
    - `name`: its own name; becomes the name of its layer.
    - `inputs`: names of tensors; "" for an optional one that is left out.
    - `outputs`: names of tensors.
    - `attributes`: its settings (default none).
    - `version`: the format's version of this operator (default 1).
    - `frozen`: weights that the file says aren't trained: True for all, or the places of some, in their order (default
      none).
    - `branches`: two graphs, of which the first is computed if the first input isn't 0, else the second. They read
      further tensors of the graph around them, which follow among `inputs`, once for each time that one is read
      (default none).
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    frozen: bool | tuple[int, ...] = ()
    branches: tuple[ForeignGraph, ...] = ()

    def frozen_roles(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of a layer's weights that aren't trained."""
        if isinstance(self.frozen, bool):
            return roles if self.frozen else ()
        return tuple(roles[place] for place in self.frozen if place < len(roles))


@dataclass(frozen=True)
class ForeignGraph:
    """A model of another framework, as its file has it.

    Arguments:
    - `format`: name of the format, such as "ONNX".
    - `name`: of the model.
    - `inputs`: tensors that the caller gives.
    - `outputs`: names of the tensors that the model returns.
    - `operators`: in an order in which each comes after those that it reads.
    - `constants`: arrays by name of tensor; weights keep the file's order of axes and their bits.
    - `tensors`: what the file says of other tensors, by name (default nothing).
    - `preprocessing`: how inputs are made, where the file tells (default empty).
    - `class_names`: names of the classes, where the file tells (default none).
    - `metadata`: other texts of the file (default none).
    - `hint`: between which tensors a network may lie, if the file doesn't say (default "").
    - `notes`: oddities of the file, and how they were read, as sentences (default none).
    """

    format: str
    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    operators: tuple[Operator, ...]
    constants: Mapping[str, np.ndarray]
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""
    notes: tuple[str, ...] = ()

    def check_ends(self) -> None:
        """Raises FormatError, with the hint, if there are no inputs or no outputs."""
        if not self.inputs or not self.outputs:
            raise FormatError(
                f"'{self.name}' ({self.format}) doesn't say between which tensors the network lies: give inputs=(…) "
                f"and outputs=(…). {self.hint}"
            )

    def between(
        self, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (), input_shape: tuple[int, ...] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> ForeignGraph:  # fmt: skip
        """The part that computes `outputs` from `inputs`, names of tensors (default: the file's own).

        - `input_shape`: of an example of the first input, in edgelearn's order (default: the file's). With as many
          numbers as the file's input has axes, and channels last there, none of its axes is the batch.
        - `constants`: values of inputs that are none of the network's then, by name (default none).

        Raises FormatError for an unknown tensor, an output that needs more than the inputs, or a constant of another
        shape.
        """
        if constants:
            return self._with_constants(constants).between(inputs, outputs, input_shape)
        made = {name: operator for operator in self.operators for name in operator.outputs}
        known = {info.name: info for info in (*self.tensors.values(), *self.inputs)}
        for name in (*inputs, *outputs):
            if name not in made and name not in known:
                raise FormatError(
                    f"'{self.name}' has no tensor '{name!s:.200}'. It has {', '.join(list(made)[:20])}, …"
                )
        chosen = tuple(known.get(name, TensorInfo(name, None)) for name in inputs) or self.inputs
        outputs = outputs or self.outputs
        given = {info.name for info in chosen} | {info.name for info in known.values() if info.is_state}
        replace(self, inputs=chosen, outputs=outputs).check_ends()
        needed, waiting = set[str](), list(outputs)
        while waiting:
            name = waiting.pop()
            if name in needed or name in given or name in self.constants or not name:
                continue
            if name not in made:
                raise FormatError(
                    f"'{self.name}': the output needs '{name!s:.200}', which isn't an input. Add it to them."
                )
            needed.add(name)
            waiting += made[name].inputs
        operators = tuple(o for o in self.operators if not needed.isdisjoint(o.outputs))
        if input_shape is not None:
            chosen = (_resized(chosen[0], input_shape), *chosen[1:])
        return replace(self, inputs=chosen, outputs=outputs, operators=operators)

    def _with_constants(self, values: Mapping[str, Any]) -> ForeignGraph:
        """The graph with constants for some of its inputs."""
        known, found = {info.name: info for info in self.inputs}, {}
        for name, value in values.items():
            if name not in known:
                raise FormatError(
                    f"'{self.name}' has no input '{name!s:.200}' that constants=… could give a value. Its inputs are "
                    f"{', '.join(known)}."
                )
            info, given = known[name], np.asarray(value)
            if info.shape is not None and given.ndim == 0:
                given = np.broadcast_to(given, [n or 1 for n in info.shape])
            sizes = given.shape if info.shape is None else info.shape
            fits = given.dtype.kind in "biuf" and len(sizes) == given.ndim
            if not fits or any(n not in (None, size) for n, size in zip(sizes, given.shape, strict=True)):
                raise FormatError(
                    f"constants: the input '{name}' has the shape {info.shape} of {info.dtype}, not {value!r:.100}."
                )
            found[name] = given.astype(info.dtype)
        inputs = tuple(info for info in self.inputs if info.name not in found)
        return replace(self, inputs=inputs, constants={**self.constants, **found})

    def sole_readers(self) -> dict[str, Operator]:
        """The operator that reads a tensor, of all tensors that are read once, and are no outputs."""
        reads = Counter(name for operator in self.operators for name in operator.inputs) + Counter(self.outputs)
        return {name: operator for operator in self.operators for name in operator.inputs if reads[name] == 1}

    def changed(self, changes: Mapping[str, Operator | None]) -> ForeignGraph:
        """The graph with other operators. `changes`: by an operator's first output; None: it is left out."""
        kept = (changes.get(o.outputs[0], o) if o.outputs else o for o in self.operators)
        return replace(self, operators=tuple(o for o in kept if o is not None))

    def closed(self, size: int) -> ForeignGraph:
        """The graph with `size` for each size of an input that the file leaves open, but the batch; a note says so."""
        inputs, notes = [], []
        for info in self.inputs:
            if info.shape and None in info.example:
                notes.append(
                    f"The file leaves sizes of '{info.name}' open, {info.shape}: this is drawn with {size} for each. "
                    f"Give input_shape=(height, width, channels) for others."
                )
                sizes = enumerate(info.shape)
                shape = tuple(size if n is None and axis != info.batch_axis else n for axis, n in sizes)
                info = replace(info, shape=shape)
            inputs.append(info)
        return replace(self, inputs=tuple(inputs), notes=(*self.notes, *notes))


def with_branches(operators: Sequence[Operator]) -> list[Operator]:
    """The operators in order, with those of both branches in place of an operator that has branches."""
    found: list[Operator] = []
    for operator in operators:
        for branch in operator.branches:
            found += with_branches(branch.operators)
            ends = zip(branch.outputs, operator.outputs, strict=False)
            found += [Operator("Identity", operator.name, (inner,), (outer,)) for inner, outer in ends]
        found += [] if operator.branches else [operator]
    return found


def with_batch_axes(
    inputs: Sequence[TensorInfo], dimensions: Sequence[tuple[int | str, ...]], second: Set[str] = frozenset()
) -> tuple[TensorInfo, ...]:  # fmt: skip
    """The inputs with the axis of their batch, which needn't be the first. Where an input's first axis has a size, it
    is the axis with the name or the size of the first input's batch, else the only open one.

    Arguments:
    - `dimensions`: sizes of each input, or names of open ones.
    - `second`: inputs of three axes whose batch is the second one: recurrent operators read them.
    """
    found = list[TensorInfo]()
    for info, sizes in zip(inputs, dimensions, strict=True):
        axis = 0
        if info.name in second and len(sizes) == 3:
            axis = 1
        elif found and len(sizes) > 1 and not info.layout and isinstance(sizes[0], int):
            batch = dimensions[0][found[0].batch_axis or 0] if dimensions[0] else ""
            alike = [n for n, size in enumerate(sizes) if size == batch] if batch else []
            unknown = [n for n, size in enumerate(sizes) if isinstance(size, str)] if isinstance(batch, str) else []
            axis = next((same[0] for same in (alike, unknown) if len(same) == 1 or same[:1] == [0]), 0)
        found.append(replace(info, batch_axis=axis))
    return tuple(found)


def takes_channels_first(name: str, operators: Sequence[Operator], kinds: Set[str], passing: Set[str]) -> bool:
    """True if all that reads tensor `name`, past operators of the kinds `passing`, is of `kinds`, whose channels are
    axis 1."""
    names, found = {name}, set[str]()
    for operator in operators:  # in the order in which they run
        if names.isdisjoint(operator.inputs) or operator.kind in ("Shape", "sym_size"):
            continue
        if operator.kind in passing:
            names.update(operator.outputs)
        else:
            found.add(operator.kind)
    return bool(found) and found <= kinds


def gives_channels_first(
    name: str, operators: Sequence[Operator], kinds: Set[str], passing: Set[str], inputs: Set[str]
) -> bool:  # fmt: skip
    """True if tensor `name` is made by an operator of `kinds`, or is one of `inputs`, with operators of the kinds
    `passing` after that."""
    makers = {output: operator for operator in operators for output in operator.outputs}
    while name in makers and makers[name].kind in passing:
        name = next((read for read in makers[name].inputs if read in makers or read in inputs), "")
    return makers[name].kind in kinds if name in makers else name in inputs


def _resized(info: TensorInfo, shape: tuple[int, ...]) -> TensorInfo:
    """The tensor with the sizes of an example in edgelearn's order."""
    sizes = (shape[-1], *shape[:-1]) if info.layout == "NCHW" else tuple(shape)
    if info.shape and len(info.shape) == len(sizes) == 1 and info.shape[0] is not None:
        return replace(info, shape=sizes)  # without a batch
    if info.shape and len(info.shape) == len(sizes) > 1 and not info.layout:
        return replace(info, shape=sizes, batch_axis=None)
    if info.batch_axis:
        return replace(info, shape=(*sizes[: info.batch_axis], None, *sizes[info.batch_axis :]))
    return replace(info, shape=(info.shape[0] if info.shape else None, *sizes))


Pair = tuple[int, int]
Sides = tuple[Pair, Pair]
Dilated = Callable[[Operator, Pair, Sides], Mapping[str, Any] | None]  # (convolution, dilation, padding): attributes
BETWEEN = {
    "add", "addv2", "biasadd", "relu", "relu6", "mul", "expanddims", "squeeze", "fusedbatchnorm", "fusedbatchnormv3",
    "identity", "logistic", "tanh", "sigmoid", "batchtospacend",
}  # fmt: skip


def fuse_dilated(graph: ForeignGraph, convolutions: Mapping[str, Dilated]) -> ForeignGraph:
    """Return the graph with such convolutions as one operator that has a dilation and a padding.

    Arguments:
    - `graph`: of TFLite or TensorFlow.
    - `convolutions`: by kind, a function that returns the attributes of a convolution with strides 1 and no padding of
      its own once it has this dilation and padding; None if it isn't one.

    Operators that belong to no such convolution stay, and are reported when they are translated.
    """
    readers, changes = graph.sole_readers(), dict[str, Operator | None]()
    for begin in graph.operators:
        if _plain(begin.kind) != "spacetobatchnd":
            continue
        chain = [begin]
        while _plain(chain[-1].kind) != "batchtospacend" and (reader := readers.get(chain[-1].outputs[0])):
            if reader.kind not in convolutions and _plain(reader.kind) not in BETWEEN:
                break
            chain.append(reader)
        changes |= {o.outputs[0]: new for o, new in zip(chain, _fused(graph, chain, convolutions), strict=False)}
    return graph.changed(changes)


def _fused(graph: ForeignGraph, chain: list[Operator], convolutions: Mapping[str, Dilated]) -> list[Operator | None]:
    """Return the operators that replace those of a chain (None: left out); none if it isn't a dilated convolution."""
    begin, end, places = chain[0], chain[-1], [n for n, operator in enumerate(chain) if operator.kind in convolutions]
    found = [graph.constants.get(name) for name in (*begin.inputs[1:], *end.inputs[1:])]
    if _plain(end.kind) != "batchtospacend" or len(places) != 1 or len(found) != 4 or any(a is None for a in found):
        return []
    block, pads, again, crops = map(np.asarray, found)
    padding = np.reshape(pads, (-1, 2)) - np.reshape(crops, (-1, 2)) if pads.shape == crops.shape else pads
    if block.tolist() != again.tolist() or block.size not in (1, 2) or padding.shape != (block.size, 2):
        return []
    if padding.min() < 0 or block.min() < 1:
        return []
    dilation, sides = [1, *block.tolist()][-2:], [[0, 0], *padding.tolist()][-2:]  # a sequence has a height of 1
    place, new = places[0] - 1, chain[1:-1]
    attributes = convolutions[new[place].kind](new[place], tuple(dilation), tuple(map(tuple, sides)))  # type: ignore
    if attributes is None:
        return []
    new[place] = replace(new[place], attributes={**new[place].attributes, **attributes})
    new[0] = replace(new[0], inputs=(begin.inputs[0], *new[0].inputs[1:]))
    new[-1] = replace(new[-1], outputs=end.outputs)
    return [None, *new, None]


def _plain(kind: str) -> str:
    """The kind as both formats have it."""
    return kind.replace("_", "").lower()


@dataclass(frozen=True)
class Problem:
    """An operator that can't be translated.

    Arguments:
    - `kind`: the format's name for the operator.
    - `name`: its own name in the file.
    - `attributes`: its settings.
    - `reason`: what is missing.
    - `nearest`: what works instead; empty if nothing is near.
    """

    kind: str
    name: str
    attributes: Mapping[str, Any]
    reason: str
    nearest: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values; attributes as text of at most 200 characters."""
        return {**vars(self), "attributes": {key: repr(value)[:200] for key, value in self.attributes.items()}}

    def __str__(self) -> str:
        plain = {
            key: value for key, value in self.attributes.items() if value is not None and not isinstance(value, dict)
        }
        settings = ", ".join(f"{key}={value!r:.40}" for key, value in plain.items())
        nearest = f" Nearest: {self.nearest}" if self.nearest else ""
        return f"{self.kind} '{self.name}' ({settings or 'no attributes'}): {self.reason}{nearest}"


def unsupported(source: str, problems: tuple[Problem, ...]) -> UnsupportedError:
    """The error that lists `problems` of the file or module `source`."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    count = plural(len(problems), "operator")
    return UnsupportedError(f"{source}: {count} can't be imported:\n{lines}", problems=problems)

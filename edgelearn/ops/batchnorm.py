"""BatchNormalization with moving statistics (fine-tuning) and with batch statistics (training from scratch), by channel
or by sub-band of frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgelearn.device import KernelConfig
from edgelearn.errors import ShapeError
from edgelearn.launch import Access, In, Role, Tail

from .base import Arrays, Gradients, LinearOp, Op, Weight
from .emit import Emitter
from .formats import Stored, reads, stored_macros, tensor_of
from .quantize import group_size
from .target import Target
from .tensor import BLOCK, LINEAR, Function, Shape, Tensor, ceil_div

WHOLE_ROWS = 1024  # that a work-group of a GPU goes through three times while three launches begin
SLICES_GPU = 8  # work-groups that normalize, a compute unit of a GPU
SLICE_ROWS = 8  # of each of their work-items at least: each adds up the sums of all groups first
CACHED_ROWS = 128  # of a block, which are read again before they leave the first cache
SMALL_GROUP, LARGE_GROUP = 8, 32  # rows of groups whose sums take much memory below, and little from there on
FEW_ROWS = 64  # of a group, so that to sum up all groups takes a good part of the time that their rows take
ITEMS_GPU = 256  # work-items of 16 channels that a compute unit of a GPU has for sums over rows


@dataclass(frozen=True)
class BatchNormalization(Op):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta per channel (Ioffe and Szegedy 2015).

    With `batchnorm="moving"` mean and variance are the moving averages, which training leaves unchanged. With "batch"
    they are those of the micro-batch, and update the moving averages.

    Arguments:
    - `momentum`: of the moving averages, as in Keras (default 0.99).
    - `epsilon`: added to the variance (default 1e-3).

    Raises ShapeError for values out of range.
    """

    momentum: float = 0.99
    epsilon: float = 1e-3

    has_values = True
    has_epilogue: ClassVar[bool] = True
    per_channel: ClassVar[bool] = True  # one scale and shift a channel, which a linear op can apply as it writes

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= 1:
            raise ShapeError(f"The momentum of moving statistics is from 0 to 1 (usual is 0.99), not {self.momentum}.")
        if not self.epsilon > 0:
            raise ShapeError(
                f"BatchNormalization needs an epsilon above 0, not {self.epsilon}: it divides by its root."
            )

    def fuses_after(self, before: Op) -> bool:
        return self.per_channel and isinstance(before, LinearOp)

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        parts = self._parts(shape)
        return {
            "gamma": Weight(parts, "ones"),
            "beta": Weight(parts, "zeros"),
            "moving_mean": Weight(parts, "zeros", trainable=False),
            "moving_variance": Weight(parts, "ones", trainable=False),
        }

    def _parts(self, shape: Shape) -> Shape:
        """Shape of the statistics."""
        return (shape[-1],)

    def _to_rows(self, x: np.ndarray) -> np.ndarray:
        """(values that share statistics, *parts)"""
        return x.reshape(-1, x.shape[-1])

    def _from_rows(self, rows: np.ndarray, shape: Shape) -> np.ndarray:
        return rows.reshape(shape)

    def reference_moments(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch's mean and variance."""
        rows = self._to_rows(x)
        return rows.mean(0), rows.var(0)

    def _reference_normal(self, x: np.ndarray, weights: Arrays, batch: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows with mean 0 and deviation 1, and 1 / standard deviation."""
        mean, variance = self.reference_moments(x) if batch else (weights["moving_mean"], weights["moving_variance"])
        inverse = 1 / np.sqrt(variance + self.epsilon)
        return (self._to_rows(x) - mean) * inverse, inverse

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays, batch: bool = False) -> np.ndarray:
        normal, _ = self._reference_normal(inputs[0], weights, batch)
        return self._from_rows(normal * weights["gamma"] + weights["beta"], inputs[0].shape)

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray, batch: bool = False
    ) -> Gradients:
        normal, inverse = self._reference_normal(inputs[0], weights, batch)
        dz = self._to_rows(dy)
        gradients = {"gamma": (dz * normal).sum(0), "beta": dz.sum(0)}
        centered = dz - dz.mean(0) - normal * (dz * normal).mean(0) if batch else dz
        return [self._from_rows(centered * weights["gamma"] * inverse, dy.shape)], gradients


@dataclass(frozen=True)
class Statistics:
    """Normalization as y * scale + shift, and for gradients mean and 1 / deviation; all of gamma's shape."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class Sets:
    """The division of a tensor into `count` sets of `rows` of 16 channels that share statistics: all rows of the
    channels, or those of a sub-band; with the arguments and macros by which kernels read them (SET_ARGUMENTS
    in kernels/batchnorm.cl)."""

    count: int
    rows: int
    arguments: tuple[int, ...]
    macros: dict[str, int]
    problem: tuple[int, ...]

    @classmethod
    def of(cls, y: Stored, gamma: Tensor) -> Sets:
        """The sets of `y`, which has as many sub-bands as gamma has rows."""
        parts, value, macros = gamma.rows, tensor_of(y), stored_macros(y)
        rows = value.rows // parts
        if parts == 1:
            return cls(value.blocks, rows, (rows,), macros, (rows, value.channels))
        arguments, problem = (rows, rows // value.images), (rows, value.channels, parts)
        return cls(value.blocks * parts, rows, arguments, macros | {"sub_bands": parts}, problem)


@dataclass(frozen=True)
class _Gate:
    """A gate by whose derivative kernels of the backward pass multiply dz, and the numbers that its input follows from.
    LINEAR is none."""

    function: Function
    statistics: Statistics

    @property
    def reads(self) -> tuple[In, ...]:
        return () if self.function == LINEAR else (self.statistics.scale.read, self.statistics.shift.read)

    @property
    def macros(self) -> dict[str, Any]:
        return {} if self.function == LINEAR else self.function.macros("gate") | {"gated": True}


def emit_kept_statistics(e: Emitter, op: BatchNormalization, w: dict[str, Tensor], bias: Tensor | None) -> Statistics:
    """Emit scale and shift from the moving statistics, once a mini-batch, since gamma and beta may be trained."""
    gamma = w["gamma"]
    scale, shift, inverse = (e.tensor(name, gamma.shape, Role.PREPARED) for name in ("scale", "shift", "1/deviation"))
    e.job(
        "batchnorm.cl", "fold_statistics", gamma.blocks * gamma.rows, gamma.read, w["beta"].read, w["moving_mean"].read,
        w["moving_variance"].read, scale.write, shift.write, inverse.write, *([bias.read] if bias else []),
        settings=(float(op.epsilon),), bias=bias is not None,
    )  # fmt: skip
    return Statistics(scale, shift, w["moving_mean"], inverse)


def emit_batch(
    e: Emitter, op: BatchNormalization, y: Stored, w: dict[str, Tensor], z: Target, activation: Function
) -> Statistics:
    """Emit z = activation(y * scale + shift) with the micro-batch's statistics, and update the moving ones.

    `activation`: may be a gate, whose derivative `emit_backward` applies.
    """
    names = ("batch scale", "batch shift", "batch mean", "batch 1/deviation")
    s = Statistics(*(e.tensor(name, w["gamma"].shape) for name in names))
    parts = (
        w["gamma"].read, w["beta"].read, s.scale.write, s.shift.write, s.mean.write, s.inverse.write,
        w["moving_mean"].update, w["moving_variance"].update,
    )  # fmt: skip
    pace, sets = (float(op.epsilon), 1.0 - op.momentum), Sets.of(y, w["gamma"])
    if tail := _tail(e, y, sets, "moments"):
        partials = _records(e, "partial statistics", tail.groups, sets)
        e.extend(tensor_of(y), partials.write)
        _finish_forward(e, sets, y, partials, (tail.rows, tail.groups, tail.span), parts, s, pace, z, activation)
        return s
    with e.choose("batchnorm_forward", sets.problem, _variants(e, sets, z)) as choice:
        if choice["whole"]:
            sizes = *sets.arguments, sets.count, *pace
            _launch(e, "whole_forward", sets, sets.count, (*reads(y), *parts), z, sizes, **_applied(activation))
            _leave_residual(e, z)
        else:
            members, groups, count = _divide(e, sets)
            partials = _records(e, "partial statistics", groups, sets)
            e.launch(
                "batchnorm.cl", "group_statistics", (groups * members, sets.count), *reads(y), partials.write,
                *sets.arguments, sets.count, count, group=group_size(e), **sets.macros,
            )  # fmt: skip
            _finish_forward(e, sets, y, partials, (count, groups, sets.rows), parts, s, pace, z, activation)
            return s
        with e.replay():
            emit_normalize(e, y, s, z, activation)
    return s


def _finish_forward(
    e: Emitter, sets: Sets, y: Stored, partials: Tensor, groups: tuple[int, int, int], parts: tuple[Access, ...],
    s: Statistics, pace: tuple[float, float], z: Target, activation: Function,
) -> None:  # fmt: skip
    """Emit `s` from sums of `groups` of rows (rows of one, number, rows after which they begin anew), and z."""
    count, number, span = groups
    sizes = sets.rows, sets.count, count, number, span, *pace
    if slices := _slices(e, sets, z, number):
        inputs = partials.read, *reads(y), *parts
        _launch(e, "finish_forward", sets, slices, inputs, z, sizes, **_applied(activation))
        _leave_residual(e, z)
        with e.replay():
            emit_normalize(e, y, s, z, activation)
        return
    e.launch(
        "batchnorm.cl", "finish_statistics", (sets.count * _members(e),), partials.read, *parts, *sizes,
        group=group_size(e),
    )  # fmt: skip
    emit_normalize(e, y, s, z, activation)


def emit_normalize(e: Emitter, y: Stored, statistics: Statistics, z: Target, activation: Function) -> None:
    """Emit z = activation(y * scale + shift)."""
    sets = Sets.of(y, statistics.scale)
    if not z.is_plain:
        inputs = (*reads(y), statistics.scale.read, statistics.shift.read)
        _emit_result(e, "normalize_forward_result", sets, inputs, z, **_applied(activation))
        return
    groups, count = e.bands(sets.rows, sets.count, 64)
    e.launch(
        "batchnorm.cl", "normalize_forward", (groups, sets.count), *reads(y), statistics.scale.read,
        statistics.shift.read, z.tensor.write, *sets.arguments, count, **_applied(activation), **sets.macros,
        **z.tensor.value_macros,
    )  # fmt: skip
    _leave_residual(e, z)


def _applied(activation: Function) -> dict[str, Any]:
    """The macros by which kernels of the forward pass apply an activation."""
    return activation.macros() | ({"gated": True} if activation.of_input else {})


def _leave_residual(e: Emitter, z: Target) -> None:
    """Say that the last launch, which writes z, can add another tensor."""
    if z.is_plain and not (z.accumulate or z.mask or e.traits.bare):
        e.leave_tail(Tail(z.tensor.buffer, "residual"))


def emit_backward(
    e: Emitter,
    y: Stored,
    dz: Tensor,
    s: Statistics,
    dgamma: Tensor,
    dbeta: Tensor,
    target: Target | None,
    kept: bool,
    add: bool,
    z: Stored | None = None,
    gate: Function = LINEAR,
) -> None:
    """Emit the gradients of gamma and beta, and of y if there is a target.

    `kept`: the statistics are constants (moving averages). `add`: add to the gradients of earlier micro-batches.
    `z`: what `emit_batch` wrote, if the launch that writes dz may take the sums of rows. `gate`: the activation that it
    applied, if dz is the gradient of what that is (default LINEAR: dz is the gradient before the activation).
    """
    sums = [dgamma.update, dbeta.update] if add else [dgamma.write, dbeta.write]
    sets, flags = Sets.of(y, s.scale), (int(kept), int(add))
    tail = _tail(e, dz, sets, "norm_sums")
    own = isinstance(z, Tensor) and tail and tail.without in (None, z.buffer)  # else the mask is another layer's
    gated = _Gate(gate, s)
    if tail and own and gate == LINEAR and isinstance(y, Tensor) and y.dtype == dz.dtype:
        partials = _records(e, "partial gradients", tail.groups, sets)
        e.extend(dz, y.read, s.mean.read, s.inverse.read, s.scale.read, s.shift.read, partials.write)
        _finish_backward(e, sets, y, dz, s, partials, tail.groups, sums, target, flags, gated)
        return
    with e.choose("batchnorm_backward", sets.problem, _variants(e, sets, target)) as choice:
        if target and choice["whole"]:
            inputs = dz.read, *reads(y), s.scale.read, s.mean.read, s.inverse.read
            sizes = *sets.arguments, sets.count, *flags
            _launch(
                e, "whole_backward", sets, sets.count, (*inputs, *gated.reads, *sums), target, sizes, **gated.macros
            )
            return
        members, groups, count = _divide(e, sets)
        partials = _records(e, "partial gradients", groups, sets)
        e.launch(
            "batchnorm.cl", "group_gradients", (groups * members, sets.count), dz.read, *reads(y), s.mean.read,
            s.inverse.read, *gated.reads, partials.write, *sets.arguments, sets.count, count, group=group_size(e),
            **sets.macros, **dz.value_macros, **gated.macros,
        )  # fmt: skip
        _finish_backward(e, sets, y, dz, s, partials, groups, sums, target, flags, gated)


def _finish_backward(
    e: Emitter, sets: Sets, y: Stored, dz: Tensor, s: Statistics, partials: Tensor, groups: int, sums: Sequence[Access],
    target: Target | None, flags: tuple[int, int], gate: _Gate,
) -> None:  # fmt: skip
    """Emit the gradients of gamma and beta from sums of `groups` of rows, and that of y if there is a target."""
    sizes = sets.rows, sets.count, groups, *flags
    if target and (slices := _slices(e, sets, target, groups)):
        inputs = partials.read, dz.read, *reads(y), s.scale.read, s.mean.read, s.inverse.read
        _launch(e, "finish_backward", sets, slices, (*inputs, *gate.reads, *sums), target, sizes, **gate.macros)
        return
    slope, offset = e.tensor("slope", s.scale.shape), e.tensor("offset", s.scale.shape)
    e.launch(
        "batchnorm.cl", "finish_gradients", (sets.count * _members(e),), partials.read, s.scale.read, s.mean.read,
        s.inverse.read, *sums, slope.write, offset.write, *sizes, group=group_size(e),
    )  # fmt: skip
    if target and not target.is_plain:
        inputs = (dz.read, *reads(y), s.scale.read, slope.read, offset.read, *gate.reads)
        _emit_result(e, "normalize_backward_result", sets, inputs, target, **gate.macros)
    elif target:
        bands, count = e.bands(sets.rows, sets.count, 64)
        e.launch(
            "batchnorm.cl", "normalize_backward", (bands, sets.count), dz.read, *reads(y), s.scale.read, slope.read,
            offset.read, *gate.reads, *sets.arguments, count, *target.arguments, **target.macros, **sets.macros,
            **gate.macros,
        )  # fmt: skip


def _tail(e: Emitter, x: Stored, sets: Sets, work: str) -> Tail | None:
    """The tail of the launch that wrote `x`, by which that takes the sums of a normalization; None if it can't, or if
    that would take longer. Rows of a block that stay in a core's first cache are soon read once more."""
    if not isinstance(x, Tensor) or "sub_bands" in sets.macros or not (tail := e.tail_of(x, work)):
        return None
    if work == "moments" and tail.rows < SMALL_GROUP:
        return None
    return tail if sets.rows > CACHED_ROWS or work == "norm_sums" or tail.rows >= LARGE_GROUP else None


def _records(e: Emitter, name: str, groups: int, sets: Sets) -> Tensor:
    """Memory for two sums of each group of rows of each set."""
    return e.tensor(name, (groups, 2, sets.count * BLOCK))


def _members(e: Emitter) -> int:
    """Work-items of a work-group that share sums."""
    return group_size(e) * e.traits.vector // BLOCK if e.traits.gpu else e.traits.members


def _divide(e: Emitter, sets: Sets) -> tuple[int, int, int]:
    """(members of a work-group that share sums, groups that the rows of a set are divided into, rows of a group)"""
    members = _members(e)
    if not e.traits.gpu:
        return members, *e.split_rows(sets.rows, sets.count * members)
    return members, *e.split_rows(sets.rows, sets.count * members, least=4 * members, items=ITEMS_GPU)


def _slices(e: Emitter, sets: Sets, target: Target, groups: int) -> int:
    """Work-groups that share the rows of all sets to normalize them, each of which adds up the sums of `groups` itself.
    0 where a launch of its own does that: on CPUs, where several share a set whose groups are few rows."""
    if "sub_bands" in sets.macros:
        return 0
    slices = SLICES_GPU * e.traits.compute_units if e.traits.gpu else _busy(e, sets) * sets.count
    if e.traits.gpu:
        slices = min(slices, ceil_div(sets.rows, SLICE_ROWS * _members(e)) * sets.count)
    if not e.traits.gpu and slices > sets.count and groups * FEW_ROWS > sets.rows:
        return 0
    slices = target.statistics.parts.rows if target.statistics else slices
    return slices if slices >= sets.count else 0


def _busy(e: Emitter, sets: Sets) -> int:
    """Work-items a set that keep a CPU busy: one if there are enough sets or they divide evenly among its cores."""
    units = e.traits.compute_units
    return 1 if sets.count % units == 0 or sets.count >= 4 * units else ceil_div(4 * units, sets.count)


def _launch(
    e: Emitter, kernel: str, sets: Sets, groups: int, inputs: tuple[Access, ...], target: Target,
    sizes: tuple[int | float, ...], **macros: Any,
) -> None:  # fmt: skip
    """Launch a kernel whose work-groups go through whole sets, so many `groups` unless there are records of statistics,
    one a group."""
    if target.is_plain:
        arguments, sink = target.arguments, target.macros | {"direct": True}
    else:
        arguments, sink = target.result_arguments(e), target.result_macros(e)
    if target.statistics:
        groups = target.statistics.parts.rows
    group = group_size(e)
    e.launch(
        "batchnorm.cl", kernel, (groups * group,), *inputs, *arguments, *sizes, group=group, whole=True,
        vector_width=e.traits.vector, **(sets.macros | sink | macros),
    )  # fmt: skip


def _emit_result(e: Emitter, kernel: str, sets: Sets, inputs: tuple[In, ...], target: Target, **macros: Any) -> None:
    """Launch a kernel that takes rows one by one and writes a result of kernels/include/result.h."""
    y, group = target.tensor, group_size(e)
    items = target.items(e, y.rows * y.blocks * BLOCK // e.traits.vector, group)
    e.launch(
        "batchnorm.cl", kernel, (items,), *inputs, *target.result_arguments(e), y.rows, *sets.arguments[1:], y.blocks,
        group=group, whole=True, vector_width=e.traits.vector, **target.result_macros(e), **sets.macros, **macros,
    )  # fmt: skip


def _variants(e: Emitter, sets: Sets, target: Target | None) -> list[KernelConfig]:
    """Candidates: "whole" 1 gives all rows of 16 channels to one work-group, and is first if that keeps the device busy
    or, on a GPU, takes less time than more launches; "whole" 0 divides rows into groups, and is the only one for
    sub-bands of which the result may be quantized."""
    if target and not target.is_plain and "sub_bands" in sets.macros:
        return [{"whole": 0}]
    enough = sets.rows <= WHOLE_ROWS if e.traits.gpu else _busy(e, sets) == 1
    return [{"whole": int(enough)}, {"whole": int(not enough)}]


@dataclass(frozen=True)
class SubSpectralNormalization(BatchNormalization):
    """BatchNormalization with statistics, scales and shifts for each sub-band of (frequency, time, channels): Chang et
    al. 2021, "SubSpectral normalization for neural audio data processing" (arXiv 2103.13620).

    Arguments:
    - `sub_bands`: number of equal parts of the first axis (default 5).

    Weights: (sub_bands, channels). Raises ShapeError if `sub_bands` doesn't divide the first axis.
    """

    sub_bands: int = 5

    per_channel = False

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or self.sub_bands < 1 or shape[0] % self.sub_bands:
            raise ShapeError(
                f"SubSpectralNormalization takes (frequency, time, channels) with a frequency of equal parts, not "
                f"{shape} in {self.sub_bands}: choose a number of sub_bands that divides the first size."
            )
        return shape

    def _parts(self, shape: Shape) -> Shape:
        return (self.sub_bands, shape[-1])

    def _to_rows(self, x: np.ndarray) -> np.ndarray:
        images, height, width, channels = x.shape
        parts = x.reshape(images, self.sub_bands, height // self.sub_bands * width, channels)
        return parts.swapaxes(1, 2).reshape(-1, self.sub_bands, channels)

    def _from_rows(self, rows: np.ndarray, shape: Shape) -> np.ndarray:
        return rows.reshape(shape[0], -1, *rows.shape[1:]).swapaxes(1, 2).reshape(shape)

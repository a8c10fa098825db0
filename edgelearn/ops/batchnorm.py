"""BatchNormalization with moving statistics (fine-tuning) and with batch statistics (training from scratch), by channel
or by sub-band of frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgelearn.device import KernelConfig
from edgelearn.errors import ShapeError
from edgelearn.launch import Access, In, Role

from .base import Arrays, Gradients, LinearOp, Op, Weight
from .emit import Emitter
from .formats import Stored, reads, stored_macros, tensor_of
from .quantize import group_size
from .target import Target
from .tensor import BLOCK, Function, Shape, Tensor

WHOLE_ROWS = 1024  # that a work-group of a GPU goes through three times while three launches begin
SLICES_GPU = 8  # work-groups that normalize, a compute unit of a GPU
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
    """Emit z = activation(y * scale + shift) with the micro-batch's statistics, and update the moving ones."""
    names = ("batch scale", "batch shift", "batch mean", "batch 1/deviation")
    s = Statistics(*(e.tensor(name, w["gamma"].shape) for name in names))
    parts = (
        w["gamma"].read, w["beta"].read, s.scale.write, s.shift.write, s.mean.write, s.inverse.write,
        w["moving_mean"].update, w["moving_variance"].update,
    )  # fmt: skip
    pace, sets = (float(op.epsilon), 1.0 - op.momentum), Sets.of(y, w["gamma"])
    with e.choose("batchnorm_forward", sets.problem, _variants(e, sets, z)) as choice:
        if choice["whole"]:
            sizes = *sets.arguments, sets.count, *pace
            _launch(e, "whole_forward", sets, sets.count, (*reads(y), *parts), z, sizes, **activation.macros())
        else:
            members, groups, count = _divide(e, sets)
            partials = e.tensor("partial statistics", (groups, 2, sets.count * 16))
            e.launch(
                "batchnorm.cl", "group_statistics", (groups * members, sets.count), *reads(y), partials.write,
                *sets.arguments, sets.count, count, group=group_size(e), **sets.macros,
            )  # fmt: skip
            sizes = sets.rows, sets.count, count, groups, *pace
            slices = _slices(e, sets, z)
            if not slices:
                e.launch(
                    "batchnorm.cl", "finish_statistics", (sets.count * members,), partials.read, *parts, *sizes,
                    group=group_size(e),
                )  # fmt: skip
                emit_normalize(e, y, s, z, activation)
                return s
            inputs = partials.read, *reads(y), *parts
            _launch(e, "finish_forward", sets, slices, inputs, z, sizes, **activation.macros())
        with e.replay():
            emit_normalize(e, y, s, z, activation)
    return s


def emit_normalize(e: Emitter, y: Stored, statistics: Statistics, z: Target, activation: Function) -> None:
    """Emit z = activation(y * scale + shift)."""
    sets = Sets.of(y, statistics.scale)
    if not z.is_plain:
        inputs = (*reads(y), statistics.scale.read, statistics.shift.read)
        _emit_result(e, "normalize_forward_result", sets, inputs, z, **activation.macros())
        return
    groups, count = e.bands(sets.rows, sets.count, 64)
    e.launch(
        "batchnorm.cl", "normalize_forward", (groups, sets.count), *reads(y), statistics.scale.read,
        statistics.shift.read, z.tensor.write, *sets.arguments, count, **activation.macros(), **sets.macros,
        **z.tensor.value_macros,
    )  # fmt: skip


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
) -> None:
    """Emit the gradients of gamma and beta, and of y if there is a target.

    `kept`: the statistics are constants (moving averages). `add`: add to the gradients of earlier micro-batches.
    """
    sums = [dgamma.update, dbeta.update] if add else [dgamma.write, dbeta.write]
    sets = Sets.of(y, s.scale)
    with e.choose("batchnorm_backward", sets.problem, _variants(e, sets, target)) as choice:
        flags = int(kept), int(add)
        if target and choice["whole"]:
            inputs = dz.read, *reads(y), s.scale.read, s.mean.read, s.inverse.read, *sums
            _launch(e, "whole_backward", sets, sets.count, inputs, target, (*sets.arguments, sets.count, *flags))
            return
        members, groups, count = _divide(e, sets)
        partials = e.tensor("partial gradients", (groups, 2, sets.count * 16))
        e.launch(
            "batchnorm.cl", "group_gradients", (groups * members, sets.count), dz.read, *reads(y), s.mean.read,
            s.inverse.read, partials.write, *sets.arguments, sets.count, count, group=group_size(e), **sets.macros,
            **dz.value_macros,
        )  # fmt: skip
        sizes = sets.rows, sets.count, groups, *flags
        if target and (slices := _slices(e, sets, target)):
            inputs = partials.read, dz.read, *reads(y), s.scale.read, s.mean.read, s.inverse.read, *sums
            _launch(e, "finish_backward", sets, slices, inputs, target, sizes)
            return
        slope, offset = e.tensor("slope", s.scale.shape), e.tensor("offset", s.scale.shape)
        e.launch(
            "batchnorm.cl", "finish_gradients", (sets.count * members,), partials.read, s.scale.read, s.mean.read,
            s.inverse.read, *sums, slope.write, offset.write, *sizes, group=group_size(e),
        )  # fmt: skip
        if target and not target.is_plain:
            inputs = (dz.read, *reads(y), s.scale.read, slope.read, offset.read)
            _emit_result(e, "normalize_backward_result", sets, inputs, target)
        elif target:
            groups, count = e.bands(sets.rows, sets.count, 64)
            e.launch(
                "batchnorm.cl", "normalize_backward", (groups, sets.count), dz.read, *reads(y), s.scale.read,
                slope.read, offset.read, *sets.arguments, count, *target.arguments, **target.macros, **sets.macros,
            )  # fmt: skip


def _divide(e: Emitter, sets: Sets) -> tuple[int, int, int]:
    """(members of a work-group that share sums, groups that the rows of a set are divided into, rows of a group)"""
    if not e.traits.gpu:
        return e.traits.members, *e.split_rows(sets.rows, sets.count * e.traits.members)
    members = group_size(e) * e.traits.vector // BLOCK
    return members, *e.split_rows(sets.rows, sets.count * members, least=4 * members, items=ITEMS_GPU)


def _slices(e: Emitter, sets: Sets, target: Target) -> int:
    """Work-groups of a GPU that share the rows of all sets to normalize them, each of which sums up the sums of groups
    itself; 0 where a launch of its own does that."""
    if not e.traits.gpu or "sub_bands" in sets.macros:
        return 0
    groups = target.statistics.parts.rows if target.statistics else SLICES_GPU * e.traits.compute_units
    return groups if groups >= sets.count else 0


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
    units = e.traits.compute_units
    enough = sets.rows <= WHOLE_ROWS if e.traits.gpu else sets.count % units == 0 or sets.count >= 4 * units
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

"""BatchNormalization with kept statistics (fine-tuning) and with batch statistics (training from scratch)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import ShapeError
from edgelearn.launch import Choice, Role

from .base import Arrays, Op, Weight
from .emit import Emitter, GradientTarget
from .tensor import Shape, Tensor


@dataclass(frozen=True)
class BatchNormalization(Op):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta per channel (Ioffe and Szegedy 2015).

    With kept statistics, mean and variance are the moving ones, which training leaves alone. With batch statistics
    they are the micro-batch's, and moving averages follow with `momentum`, as in Keras.
    """

    momentum: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if self.epsilon <= 0:
            raise ShapeError(
                f"BatchNormalization needs an epsilon above 0, not {self.epsilon}: it divides by its root."
            )

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def weights(self, shape: Shape) -> dict[str, Weight]:
        channels = (shape[-1],)
        return {
            "gamma": Weight(channels, "ones"),
            "beta": Weight(channels, "zeros"),
            "moving_mean": Weight(channels, "zeros", trainable=False),
            "moving_variance": Weight(channels, "ones", trainable=False),
        }

    def reference_statistics(self, x: np.ndarray, weights: Arrays, batch: bool) -> tuple[np.ndarray, np.ndarray]:
        """Mean and 1 / standard deviation."""
        axes = tuple(range(x.ndim - 1))
        mean = x.mean(axes) if batch else weights["moving_mean"]
        variance = x.var(axes) if batch else weights["moving_variance"]
        return mean, 1 / np.sqrt(variance + self.epsilon)

    def reference_forward(self, inputs: list[np.ndarray], weights: Arrays, batch: bool = False) -> np.ndarray:
        mean, inverse = self.reference_statistics(inputs[0], weights, batch)
        return (inputs[0] - mean) * inverse * weights["gamma"] + weights["beta"]

    def reference_backward(
        self, inputs: list[np.ndarray], weights: Arrays, dy: np.ndarray, batch: bool = False
    ) -> tuple[list[np.ndarray], Arrays]:
        (x,) = inputs
        axes = tuple(range(x.ndim - 1))
        mean, inverse = self.reference_statistics(x, weights, batch)
        normal = (x - mean) * inverse
        gradients = {"gamma": (dy * normal).sum(axes), "beta": dy.sum(axes)}
        centered = dy - dy.mean(axes) - normal * (dy * normal).mean(axes) if batch else dy
        return [centered * weights["gamma"] * inverse], gradients


@dataclass(frozen=True)
class Statistics:
    """What normalizing needs on the device: y * scale + shift, and for the gradients mean and 1 / deviation."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    inverse: Tensor


def emit_kept_statistics(e: Emitter, op: BatchNormalization, w: dict[str, Tensor], bias: Tensor | None) -> Statistics:
    """Scale and shift from the moving statistics, once a mini-batch, since gamma and beta may be trained."""
    gamma = w["gamma"]
    scale, shift, inverse = (e.tensor(name, gamma.shape, Role.PREPARED) for name in ("scale", "shift", "1/deviation"))
    e.job(
        "batchnorm.cl", "fold_statistics", gamma.blocks, gamma.read, w["beta"].read, w["moving_mean"].read,
        w["moving_variance"].read, scale.write, shift.write, inverse.write, *([bias.read] if bias else []),
        settings=(float(op.epsilon),), bias=bias is not None,
    )  # fmt: skip
    return Statistics(scale, shift, w["moving_mean"], inverse)


def emit_batch(
    e: Emitter, op: BatchNormalization, y: Tensor, w: dict[str, Tensor], z: Tensor, activation: int
) -> Statistics:
    """z = activation(y * scale + shift) with the micro-batch's statistics, which move the moving ones."""
    names = ("batch scale", "batch shift", "batch mean", "batch 1/deviation")
    found = Statistics(*(e.tensor(name, (y.channels,)) for name in names))
    moving = w["moving_mean"].update, w["moving_variance"].update
    pace = float(op.epsilon), 1.0 - op.momentum
    with e.choose("batchnorm_forward", (y.rows, y.channels), _variants(e, y)) as choice:
        if choice["whole"]:
            e.launch(
                "batchnorm.cl", "whole_forward", (y.blocks,), y.read, w["gamma"].read, w["beta"].read,
                found.scale.write, found.shift.write, found.mean.write, found.inverse.write, *moving, z.write, y.rows,
                y.blocks, *pace, activation=activation,
            )  # fmt: skip
            with e.again():
                emit_normalize(e, y, found, z, activation)
            return found
        members = e.traits.members
        groups, count = e.split_rows(y.rows, y.blocks * members)
        partials = e.tensor("partial statistics", (groups, 2, y.blocks * 16))
        e.launch(
            "batchnorm.cl", "group_statistics", (groups * members, y.blocks), y.read, partials.write, y.rows,
            y.blocks, count,
        )  # fmt: skip
        e.launch(
            "batchnorm.cl", "finish_statistics", (y.blocks * members,), partials.read, w["gamma"].read, w["beta"].read,
            found.scale.write, found.shift.write, found.mean.write, found.inverse.write, *moving, y.rows, y.blocks,
            count, groups, *pace,
        )  # fmt: skip
        emit_normalize(e, y, found, z, activation)
    return found


def emit_normalize(e: Emitter, y: Tensor, statistics: Statistics, z: Tensor, activation: int) -> None:
    """z = activation(y * scale + shift)"""
    groups, count = e.bands(y.rows, y.blocks, 64)
    e.launch(
        "batchnorm.cl", "normalize_forward", (groups, y.blocks), y.read, statistics.scale.read, statistics.shift.read,
        z.write, y.rows, count, activation=activation,
    )  # fmt: skip


def emit_backward(
    e: Emitter,
    y: Tensor,
    dz: Tensor,
    s: Statistics,
    dgamma: Tensor,
    dbeta: Tensor,
    target: GradientTarget | None,
    kept: bool,
    add: bool,
) -> None:
    """Gradients of gamma and beta, and of y where there is a target."""
    sums = [dgamma.update, dbeta.update] if add else [dgamma.write, dbeta.write]
    with e.choose("batchnorm_backward", (y.rows, y.channels), _variants(e, y)) as choice:
        if target and choice["whole"]:
            e.launch(
                "batchnorm.cl", "whole_backward", (y.blocks,), dz.read, y.read, s.scale.read, s.mean.read,
                s.inverse.read, *sums, y.rows, y.blocks, int(kept), int(add), *target.arguments, **target.macros,
            )  # fmt: skip
            return
        members = e.traits.members
        groups, count = e.split_rows(y.rows, y.blocks * members)
        partials = e.tensor("partial gradients", (groups, 2, y.blocks * 16))
        e.launch(
            "batchnorm.cl", "group_gradients", (groups * members, y.blocks), dz.read, y.read, s.mean.read,
            s.inverse.read, partials.write, y.rows, y.blocks, count,
        )  # fmt: skip
        slope, offset = e.tensor("slope", (y.channels,)), e.tensor("offset", (y.channels,))
        e.launch(
            "batchnorm.cl", "finish_gradients", (y.blocks * members,), partials.read, s.scale.read, s.mean.read,
            s.inverse.read, *sums, slope.write, offset.write, y.rows, y.blocks, groups, int(kept), int(add),
        )  # fmt: skip
        if target:
            groups, count = e.bands(y.rows, y.blocks, 64)
            e.launch(
                "batchnorm.cl", "normalize_backward", (groups, y.blocks), dz.read, y.read, s.scale.read, slope.read,
                offset.read, y.rows, count, *target.arguments, **target.macros,
            )  # fmt: skip


def _variants(e: Emitter, y: Tensor) -> list[Choice]:
    """Whole: all rows of 16 channels by one work-item, where these are enough for the device; else groups of rows."""
    units = e.traits.compute_units
    enough = not e.traits.gpu and (y.blocks % units == 0 or y.blocks >= 4 * units)
    return [{"whole": int(enough)}, {"whole": int(not enough)}]

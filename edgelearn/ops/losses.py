"""The losses by Keras's names."""

from __future__ import annotations

from .binary_cross_entropy import BinaryCrossentropy, BinaryFocalCrossentropy
from .categorical_cross_entropy import CategoricalCrossentropy, CategoricalFocalCrossentropy
from .cosine import CodewordHinge, PositiveHinge
from .loss import Loss, Losses
from .minimum_entropy import MinimumEntropy
from .prototypical import Prototypical
from .regression import Huber, MeanAbsoluteError, MeanSquaredError
from .softmax_cross_entropy import SoftmaxCrossEntropy

__all__ = [
    "LOSSES", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy", "CodewordHinge", "Huber", "Loss", "Losses", "MeanAbsoluteError",
    "MeanSquaredError", "MinimumEntropy", "PositiveHinge", "Prototypical", "SoftmaxCrossEntropy",
]  # fmt: skip

LOSSES: dict[str, type[Loss]] = {
    "sparse_categorical_crossentropy": SoftmaxCrossEntropy,
    "categorical_crossentropy": CategoricalCrossentropy,
    "categorical_focal_crossentropy": CategoricalFocalCrossentropy,
    "binary_crossentropy": BinaryCrossentropy,
    "binary_focal_crossentropy": BinaryFocalCrossentropy,
    "mean_squared_error": MeanSquaredError,
    "mse": MeanSquaredError,
    "mean_absolute_error": MeanAbsoluteError,
    "mae": MeanAbsoluteError,
    "huber": Huber,
}

"""Networks for windows of motion sensors: those of Matey-Sanz et al.'s study of phones and watches
(github.com/GeoTecINIT/har-performance-study)."""

from __future__ import annotations

from collections.abc import Sequence

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.ops import LSTM, Conv1D, Conv2D, Dense, Flatten, ReLU, Reshape, Transpose

PARTS = 5  # that `motion_cnn_lstm` divides a window into


def motion_mlp(features: int = 47, units: Sequence[int] = (256, 512), classes: int = 5) -> Network:
    """Dense layers on features of a window (see edgelearn.data.motion.motion_features), with logits."""
    network = Network("motion_mlp", (features,))
    return _classifier(network, units, classes)


def motion_cnn(
    shape: tuple[int, int] = (50, 6), filters: int = 32, kernel_size: int = 5, units: Sequence[int] = (512,),
    classes: int = 5,
) -> Network:  # fmt: skip
    """A convolution along the axes, whose channels are the steps, and dense layers, with logits.

    Arguments:
    - `shape`: (steps, channels) of a window (default (50, 6)).
    - `filters`, `kernel_size`: of the convolution (default 32 and 5 axes).
    - `units`: of the hidden dense layers (default one of 512).
    - `classes`: activities (default 5).
    """
    network = Network("motion_cnn", shape)
    network.add("axes", Transpose((2, 1)))
    network.add("conv", Conv1D(filters, kernel_size, padding="same"))
    network.add("conv_relu", ReLU())
    network.add("flatten", Flatten())
    return _classifier(network, units, classes)


def motion_lstm(
    shape: tuple[int, int] = (50, 6), lstms: Sequence[int] = (128,), units: Sequence[int] = (512,), classes: int = 5
) -> Network:  # fmt: skip
    """LSTMs over the steps, and dense layers, with logits.

    Arguments:
    - `shape`: (steps, channels) of a window (default (50, 6)).
    - `lstms`: units of each LSTM (default one of 128).
    - `units`, `classes`: as of `motion_cnn`.
    """
    network = Network("motion_lstm", shape)
    for number, size in enumerate(lstms, 1):
        network.add(f"lstm{number}", LSTM(size, return_sequences=number < len(lstms)))
    return _classifier(network, units, classes)


def motion_cnn_lstm(
    shape: tuple[int, int] = (50, 6), filters: Sequence[int] = (64,), kernel_size: int = 7, lstm: int = 128,
    units: Sequence[int] = (128,), classes: int = 5,
) -> Network:  # fmt: skip
    """Convolutions within five parts of a window, an LSTM over the parts, and dense layers, with logits. As in the
    study, the values of all axes one after the other are divided, not the steps.

    Arguments:
    - `shape`: (steps, channels) of a window (default (50, 6)).
    - `filters`, `kernel_size`: of each convolution (default one of 64, 7 wide).
    - `lstm`: units of the LSTM (default 128).
    - `units`, `classes`: as of `motion_cnn`.

    Raises ShapeError for a number of steps that five doesn't divide.
    """
    steps, channels = shape
    if steps % PARTS:
        raise ShapeError(f"A window of {steps} steps can't be divided into {PARTS} parts: take a multiple of {PARTS}.")
    network = Network("motion_cnn_lstm", shape)
    network.add("axes", Transpose((2, 1)))
    network.add("parts", Reshape((PARTS, steps // PARTS, channels)))
    for number, size in enumerate(filters, 1):
        network.add(f"conv{number}", Conv2D(size, (1, kernel_size), padding="same"))
        network.add(f"conv{number}_relu", ReLU())
    network.add("steps", Reshape((PARTS, -1)))
    network.add("lstm", LSTM(lstm))
    return _classifier(network, units, classes)


def _classifier(network: Network, units: Sequence[int], classes: int) -> Network:
    for number, size in enumerate(units, 1):
        network.add(f"dense{number}", Dense(size))
        network.add(f"dense{number}_relu", ReLU())
    network.add("logits", Dense(classes))
    return network

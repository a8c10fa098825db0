"""Small networks of modules whose branches are concatenated: SqueezeNet 1.1 (Iandola et al. 2016, arXiv 1602.07360; the
authors' code has version 1.1) and ShuffleNet V2 (Ma et al. 2018, arXiv 1807.11164)."""

from __future__ import annotations

from edgelearn.graph import Network, add_split
from edgelearn.ops import (
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dropout,
    GlobalAveragePooling2D,
    MaxPooling2D,
    Op,
    ReLU,
    Reshape,
    Softmax,
    Transpose,
)

from .parts import classify, conv, depthwise, unit

# Channels of the squeeze and of each of the two expansions; after modules 3 and 5 the image is halved.
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
HALVED = (3, 5)


def squeezenet(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.5,
) -> Network:
    """SqueezeNet 1.1: fire modules, and a classifier that is a convolution. Kernels are initialised as in He et al.
    2015. Input: RGB, each channel with mean 0 and deviation 1.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: filters of the last convolution, "conv10" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `dropout`: rate before the last convolution (default 0.5).
    """
    network = Network(f"squeezenet_{alpha:g}_{input_shape[0]}", input_shape)

    def rectified(name: str, filters: int, size: int, *inputs: str, strides: int = 1) -> str:
        padding = "same" if strides == 1 else "valid"
        op = Conv2D(filters, size, strides, padding, kernel_initializer="he_normal")
        return network.add(f"{name}_relu", ReLU(), network.add(name, op, *inputs))

    rectified("conv1", int(64 * alpha), 3, strides=2)
    network.add("pool1", MaxPooling2D(3, 2))
    for number, (squeeze, expand) in enumerate(FIRES, start=2):
        name, filters = f"fire{number}", int(expand * alpha)
        x = rectified(f"{name}_squeeze", int(squeeze * alpha), 1)
        parts = [rectified(f"{name}_expand{size}x{size}", filters, size, x) for size in (1, 3)]
        network.add(f"{name}_concatenate", Concatenate(), *parts)
        if number in HALVED:
            network.add(f"pool{number}", MaxPooling2D(3, 2))
    if dropout:
        network.add("dropout", Dropout(dropout))
    rectified("conv10", classes, 1)
    network.add("pool10", GlobalAveragePooling2D())
    if softmax:
        network.add("softmax", Softmax())
    return network


# Table 5 of the paper: channels of stages 2 to 4 and of the last convolution, by width.
SHUFFLE_CHANNELS = {
    0.5: (48, 96, 192, 1024), 1.0: (116, 232, 464, 1024), 1.5: (176, 352, 704, 1024), 2.0: (244, 488, 976, 2048),
}  # fmt: skip
SHUFFLE_BLOCKS, SHUFFLE_STEM = (4, 8, 4), 24


def shufflenet_v2(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ShuffleNet V2, table 5 of the paper. Kernels are initialised as in He et al. 2015. Input: RGB, each channel with
    mean 0 and deviation 1.

    Arguments:
    - `alpha`: width: 0.5, 1.0 (default), 1.5 or 2.0 of the table, or a multiplier of the channels of 1.0, which then
      are rounded to even numbers.
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"shufflenet_v2_{alpha:g}_{input_shape[0]}", input_shape)
    scaled = tuple(2 * round(channels * alpha / 2) for channels in SHUFFLE_CHANNELS[1.0])
    *stages, head = SHUFFLE_CHANNELS.get(alpha, scaled)
    _shuffle_unit(network, "conv1", conv(SHUFFLE_STEM, 3, 2, AROUND))
    network.add("pool1", MaxPooling2D(3, 2, AROUND))
    for stage, (channels, blocks) in enumerate(zip(stages, SHUFFLE_BLOCKS, strict=True), start=2):
        for number in range(1, blocks + 1):
            _shuffle_block(network, f"stage{stage}_block{number}", channels // 2, halves=number == 1)
    _shuffle_unit(network, "conv5", conv(head))
    return classify(network, classes, softmax)


AROUND = ((1, 1), (1, 1))  # "same" would pad only at the bottom and right for stride 2


def _shuffle_block(network: Network, name: str, half: int, halves: bool) -> None:
    """Figure 3 of the paper: one half of the channels is convolved, and the other left as it is (c), or both are
    computed from all channels, with stride 2 (d); then channels of the two halves alternate."""
    x = network.output.name
    if halves:
        kept, x = _shuffle_branch(network, f"{name}_left", x, half, 2, first=False), x
    else:
        kept, x = add_split(network, f"{name}_half", 2, x)
    y = _shuffle_branch(network, f"{name}_right", x, half, 2 if halves else 1, first=True)
    both = network.add(f"{name}_concatenate", Concatenate(), kept, y)
    height, width, channels = network.shape_of(both)
    network.add(f"{name}_halves", Reshape((height, width, 2, half)))
    network.add(f"{name}_alternate", Transpose((1, 2, 4, 3)))
    network.add(f"{name}_shuffle", Reshape((height, width, channels)))


def _shuffle_branch(network: Network, name: str, x: str, filters: int, strides: int, first: bool) -> str:
    if first:
        x = _shuffle_unit(network, f"{name}_first", conv(filters), x)
    norm = BatchNormalization(0.9, 1e-5)
    x = unit(network, f"{name}_depthwise", depthwise(3, strides, AROUND), None, norm, x)
    return _shuffle_unit(network, f"{name}_last", conv(filters), x)


def _shuffle_unit(network: Network, name: str, op: Op, *inputs: str) -> str:
    return unit(network, name, op, ReLU(), BatchNormalization(0.9, 1e-5), *inputs)

"""Networks for pictures with which others compare theirs.

- LeNet-5 (LeCun et al. 1998, "Gradient-based learning applied to document recognition"), and the networks for digits of
  two frameworks that used OpenCL: DeepCL (Perkins 2015, github.com/hughperkins/DeepCL) and TransferCL, on phones
  (Valery et al. 2017, "CPU/GPU collaboration techniques for transfer learning on mobile devices").
- AlexNet as published for two GPUs (Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural
  networks") and in one column (Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks",
  arXiv 1404.5997). Layers are called as in the paper's code: conv1 to conv5, then fc6 to fc8.
- Small networks of modules whose branches are concatenated: SqueezeNet 1.1 (Iandola et al. 2016, arXiv 1602.07360; the
  authors' code has version 1.1) and ShuffleNet V2 (Ma et al. 2018, arXiv 1807.11164).
"""

from __future__ import annotations

from edgelearn.graph import Network, add_split
from edgelearn.ops import (
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    LinearOp,
    LocalResponseNormalization,
    MaxPooling2D,
    Op,
    ReLU,
    Reshape,
    Softmax,
    Tanh,
    Transpose,
)

from .parts import classify, conv, depthwise, unit


def lenet5(input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True) -> Network:
    """LeNet-5, figure 2 of the paper, as it is built today: C3 sees all channels, pooling has no weights, and the
    output is a dense layer. The paper's border of two pixels around 28 x 28 is padding.

    Arguments:
    - `classes`: units of the last layer, "output" (default 10).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"lenet5_{input_shape[0]}", input_shape)
    for name, filters, padding in (("c1", 6, "same"), ("c3", 16, "valid")):
        network.add(name, Conv2D(filters, 5, padding=padding))
        network.add(f"{name}_tanh", Tanh())
        network.add(f"s{int(name[1]) + 1}", AveragePooling2D(2))
    network.add("flatten", Flatten())
    for name, units in (("c5", 120), ("f6", 84)):
        network.add(name, Dense(units))
        network.add(f"{name}_tanh", Tanh())
    network.add("output", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def lenet_deepcl(
    input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True, units: int = 150
) -> Network:
    """DeepCL's network for MNIST, 8c5z-relu-mp2-16c5z-relu-mp3-150n-tanh-10n in its words: 8 and 16 filters of 5 x 5,
    pooled by 2 and by 3, and 150 hidden units. Input: pixels less their mean, over their deviation.

    Arguments:
    - `classes`: units of the last layer, "output" (default 10).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of the hidden layer (default 150).
    """
    network = Network(f"lenet_deepcl_{units}_{input_shape[0]}", input_shape)
    for number, (filters, pool) in enumerate(((8, 2), (16, 3)), start=1):
        network.add(f"conv{number}", Conv2D(filters, 5, padding="same"))
        network.add(f"relu{number}", ReLU())
        network.add(f"pool{number}", MaxPooling2D(pool))
    network.add("flatten", Flatten())
    network.add("hidden", Dense(units))
    network.add("tanh", Tanh())
    network.add("output", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def lenet_transfercl(
    input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True
) -> Network:
    """TransferCL's network for digits: `lenet_deepcl` with 152 hidden units, a multiple of 8."""
    return lenet_deepcl(input_shape, classes, softmax, units=152)


# Filters, kernel size, strides, sides of padding, groups; layers 1, 2 and 5 are pooled.
TWO_COLUMNS = ((96, 11, 4, 0, 1), (256, 5, 1, 2, 2), (384, 3, 1, 1, 1), (384, 3, 1, 1, 2), (256, 3, 1, 1, 2))
ONE_COLUMN = ((64, 11, 4, 2, 1), (192, 5, 1, 2, 1), (384, 3, 1, 1, 1), (256, 3, 1, 1, 1), (256, 3, 1, 1, 1))
POOLED, RESPONSE_NORMALIZED = (1, 2, 5), (1, 2)


def alexnet(
    input_shape: tuple[int, int, int] = (227, 227, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.5,
) -> Network:
    """AlexNet of 2012: convolutions 2, 4 and 5 in two groups, one for each GPU, and local response normalization after
    the first two. The paper's 224 pixels are 227, without which its layers don't fit. Kernels are initialised as in He
    et al. 2015. Input: RGB minus each channel's mean.

    Arguments:
    - `input_shape`: height and width of at least 67.
    - `alpha`: width multiplier of the convolutions; their filters are rounded to multiples of 2 (default 1).
    - `classes`: units of the last layer, "fc8" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of each of the two hidden dense layers (default 4096).
    - `dropout`: rate before each hidden dense layer (default 0.5); 0: no Dropout layers.
    """
    network = Network(f"alexnet_{alpha:g}_{input_shape[0]}", input_shape)
    return _build(network, TWO_COLUMNS, RESPONSE_NORMALIZED, alpha, classes, softmax, units, dropout)


def alexnet_one_column(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.5,
) -> Network:
    """AlexNet of 2014, which torchvision has: one column, fewer filters, no local response normalization. Input: RGB,
    each channel with mean 0 and deviation 1. Arguments as `alexnet`; height and width of at least 63."""
    network = Network(f"alexnet_one_column_{alpha:g}_{input_shape[0]}", input_shape)
    return _build(network, ONE_COLUMN, (), alpha, classes, softmax, units, dropout)


def _build(
    network: Network, columns: tuple[tuple[int, ...], ...], normalized: tuple[int, ...], alpha: float, classes: int,
    softmax: bool, units: int, dropout: float,
) -> Network:  # fmt: skip
    def rectified(name: str, op: LinearOp) -> None:
        network.add(name, op)
        network.add(f"{name.replace('conv', 'relu').replace('fc', 'relu')}", ReLU())

    for number, (filters, size, strides, side, groups) in enumerate(columns, start=1):
        sides = ((side, side), (side, side))
        filters = 2 * round(filters * alpha / 2)
        rectified(
            f"conv{number}",
            Conv2D(filters, size, strides, sides, groups=groups, kernel_initializer="he_normal"),
        )
        if number in normalized:
            network.add(f"norm{number}", LocalResponseNormalization(size=5, alpha=1e-4, beta=0.75, bias=2.0))
        if number in POOLED:
            network.add(f"pool{number}", MaxPooling2D(3, 2))
    network.add("flatten", Flatten())
    for name in ("fc6", "fc7"):
        if dropout:
            network.add(f"drop_{name}", Dropout(dropout))
        rectified(name, Dense(units, kernel_initializer="he_normal"))
    network.add("fc8", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


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

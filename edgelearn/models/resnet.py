"""VGG16 (Simonyan and Zisserman 2015, arXiv 1409.1556), ResNets (He et al. 2016, "Deep residual learning for image
recognition", arXiv 1512.03385; ResNet-8 of Banbury et al. 2021, "MLPerf Tiny benchmark", arXiv 2106.07597) and RevNets
for CIFAR (Gomez et al. 2017, "The reversible residual network: backpropagation without storing activations", arXiv
1707.04585: table 1, and the shortcuts of the authors' code, github.com/renmengye/revnet-public). Layers are called as
in keras.applications where it has them.
"""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import (
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Coupling,
    Dense,
    Dropout,
    Flatten,
    LinearOp,
    MaxPooling2D,
    PadChannels,
    ReLU,
    SliceChannels,
    Softmax,
    Stream,
)
from edgelearn.ops.merge import STEP

from .parts import classify, conv

VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters, convolutions


def vgg16(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.0,
) -> Network:
    """VGG16, configuration D of table 1 of the paper. Kernels are initialised as in He et al. 2015, so that the whole
    network can be trained at once. Input: RGB minus each channel's mean (Keras's weights were trained on BGR in
    0..255).

    Arguments:
    - `input_shape`: height and width are multiples of 32.
    - `alpha`: width multiplier of the convolutions (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of each of the two hidden dense layers (default 4096).
    - `dropout`: rate after these layers; 0.5 in section 3.1 of the paper; 0 (default, as in Keras): no Dropout layers.
    """
    network = Network(f"vgg16_{alpha:g}_{input_shape[0]}", input_shape)

    def rectified(name: str, op: LinearOp) -> None:
        network.add(name, op)
        network.add(f"{name}_relu", ReLU())

    for stage, (filters, convolutions) in enumerate(VGG_STAGES, start=1):
        for number in range(1, convolutions + 1):
            name = f"block{stage}_conv{number}"
            rectified(name, Conv2D(int(filters * alpha), 3, padding="same", kernel_initializer="he_normal"))
        network.add(f"block{stage}_pool", MaxPooling2D())
    network.add("flatten", Flatten())
    for name in ("fc1", "fc2"):
        rectified(name, Dense(units, kernel_initializer="he_normal"))
        if dropout:
            network.add(f"{name}_dropout", Dropout(dropout))
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


RESNET_FILTERS = (64, 128, 256, 512)  # of the stages conv2 to conv5
BLOCKS_18, BLOCKS_34 = (2, 2, 2, 2), (3, 4, 6, 3)  # of these stages; ResNet-50 has the bottlenecks that 34 has blocks


def resnet18(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ResNet-18, table 1 of the paper; shortcuts are projections where shapes change (option B of section 3.3). Input:
    RGB, each channel with mean 0 and deviation 1. Kernels are initialised as in He et al. 2015.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    return _resnet("resnet18", BLOCKS_18, False, input_shape, alpha, classes, softmax)


def resnet34(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ResNet-34, table 1 of the paper. Arguments and input as `resnet18`."""
    return _resnet("resnet34", BLOCKS_34, False, input_shape, alpha, classes, softmax)


def resnet50(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ResNet-50, table 1 of the paper, with the stride in the 3 x 3 convolution of a bottleneck ("v1.5", as in
    torchvision). Arguments and input as `resnet18`."""
    return _resnet("resnet50", BLOCKS_34, True, input_shape, alpha, classes, softmax)


def _resnet(
    name: str, blocks: tuple[int, ...], bottleneck: bool, input_shape: tuple[int, int, int], alpha: float,
    classes: int, softmax: bool,
) -> Network:  # fmt: skip
    network = Network(f"{name}_{alpha:g}_{input_shape[0]}", input_shape)
    _convolution(network, "conv1", int(64 * alpha), 7, strides=2)
    network.add("conv1_relu", ReLU())
    network.add("pool1_pool", MaxPooling2D(3, 2, ((1, 1), (1, 1))))
    return _body(network, blocks, bottleneck, alpha, classes, softmax)


def resnet18_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3), alpha: float = 1.0, classes: int = 10, softmax: bool = True
) -> Network:
    """`resnet18` for 32 x 32 pictures, as used in papers on quantized training: the stem is a 3 x 3 convolution of
    stride 1 without pooling, so that the stages see 32, 16, 8 and 4 pixels."""
    network = Network(f"resnet18_cifar_{alpha:g}_{input_shape[0]}", input_shape)
    _convolution(network, "conv1", int(64 * alpha), 3)
    network.add("conv1_relu", ReLU())
    return _body(network, BLOCKS_18, False, alpha, classes, softmax)


def resnet8(
    input_shape: tuple[int, int, int] = (32, 32, 3), alpha: float = 1.0, classes: int = 10, softmax: bool = True
) -> Network:
    """ResNet-8 of MLPerf Tiny's image classification: a stem of 16 filters and three blocks; convolutions have biases,
    and shortcuts that change the shape no BatchNorm. Input: RGB in 0..255.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 10).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"resnet8_{alpha:g}_{input_shape[0]}", input_shape)

    def convolve(name: str, filters: int, size: int, strides: int, *inputs: str) -> str:
        op = Conv2D(filters, size, strides, "same", kernel_initializer="he_normal")
        return network.add(name, op, *inputs)

    def unit(name: str, filters: int, strides: int = 1) -> str:
        return network.add(f"{name}_bn", BatchNormalization(), convolve(name, filters, 3, strides))

    unit("stem", int(16 * alpha))
    network.add("stem_relu", ReLU())
    for number, filters in enumerate((16, 32, 64), start=1):
        name, width, strides, x = f"block{number}", int(filters * alpha), min(number, 2), network.output.name
        unit(f"{name}_1", width, strides)
        network.add(f"{name}_1_relu", ReLU())
        y = unit(f"{name}_2", width)
        shortcut = convolve(f"{name}_0", width, 1, strides, x) if strides > 1 else x
        network.add(f"{name}_add", Add(), shortcut, y)
        network.add(f"{name}_out", ReLU())
    return classify(network, classes, softmax, pool="avg_pool")


def _body(
    network: Network, blocks: tuple[int, ...], bottleneck: bool, alpha: float, classes: int, softmax: bool
) -> Network:
    for stage, (filters, count) in enumerate(zip(RESNET_FILTERS, blocks, strict=True), start=2):
        for block in range(1, count + 1):
            strides = 2 if block == 1 and stage > 2 else 1
            _block(network, f"conv{stage}_block{block}", int(filters * alpha), strides, bottleneck)
    return classify(network, classes, softmax, pool="avg_pool")


def _block(network: Network, name: str, filters: int, strides: int, bottleneck: bool) -> None:
    """relu(x + F(x)), figure 2 of the paper: F has two 3 x 3 convolutions, or, as a bottleneck (figure 5), a 3 x 3 one
    between two of 1 x 1, the last of which has four times the filters."""
    x = network.output
    shortcut, width = x.name, filters * 4 if bottleneck else filters
    if x.shape[-1] != width or strides > 1:
        shortcut = _convolution(network, f"{name}_0", width, 1, strides, x.name)
    layers = [(filters, 3, strides), (width, 3, 1)]
    if bottleneck:
        layers = [(filters, 1, 1), (filters, 3, strides), (width, 1, 1)]
    y = x.name
    for number, (channels, size, stride) in enumerate(layers, start=1):
        y = _convolution(network, f"{name}_{number}", channels, size, stride, y)
        if number < len(layers):
            y = network.add(f"{name}_{number}_relu", ReLU())
    network.add(f"{name}_add", Add(), shortcut, y)
    network.add(f"{name}_out", ReLU())


def _convolution(network: Network, name: str, filters: int, size: int, strides: int = 1, *inputs: str) -> str:
    """A convolution and BatchNorm. Padding is symmetric ("same" would pad only at the bottom and right for stride
    2)."""
    sides = (size // 2, size // 2)
    network.add(f"{name}_conv", conv(filters, size, strides, (sides, sides)), *inputs)
    return network.add(f"{name}_bn", BatchNormalization(momentum=0.9, epsilon=1e-5))


def revnet38(input_shape=(32, 32, 3), classes: int = 10, softmax: bool = True, step: float = STEP) -> Network:
    """RevNet-38: three stages of 3 units, F and G of two layers; 0.46 million parameters."""
    return revnet("revnet38", 3, (32, 32, 64, 112), False, input_shape, classes, softmax, step)


def revnet110(input_shape=(32, 32, 3), classes: int = 10, softmax: bool = True, step: float = STEP) -> Network:
    """RevNet-110: three stages of 9 units, F and G of two layers; 1.73 million parameters."""
    return revnet("revnet110", 9, (32, 32, 64, 128), False, input_shape, classes, softmax, step)


def revnet164(input_shape=(32, 32, 3), classes: int = 10, softmax: bool = True, step: float = STEP) -> Network:
    """RevNet-164: three stages of 9 units, F and G bottlenecks of three layers; 1.75 million parameters."""
    return revnet("revnet164", 9, (32, 128, 256, 512), True, input_shape, classes, softmax, step)


def revnet(
    name: str,
    units: int,
    filters: tuple[int, int, int, int],
    bottleneck: bool,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """A stem, then three stages of two streams. The second and third stage halve the image in their first unit. Input:
    RGB, each channel with mean 0 and deviation 1.

    Arguments:
    - `units`: in each stage.
    - `filters`: of the stem and of each stage, both streams together.
    - `bottleneck`: F and G are bottlenecks of three layers instead of two layers.
    - `step`: rounding step of the streams (see ops/merge.py); 0 doesn't round.
    """
    builder = _RevNetBuilder(Network(name, input_shape), bottleneck, step)
    network = builder.network
    network.add("stem_conv", conv(filters[0], 3))
    builder.streams = builder.split(builder.activated("stem", "stem_conv"), filters[0] // 2)
    for stage, width in enumerate(filters[1:], start=1):
        for unit in range(1, units + 1):
            strides = 2 if stage > 1 and unit == 1 else 1
            builder.unit(f"stage{stage}_unit{unit}", width // 2, strides, activate=(stage, unit) != (1, 1))
    network.add("streams", Concatenate(), *builder.streams)
    builder.activated("last", "streams")
    return classify(network, classes, softmax, pool="avg_pool")


class _RevNetBuilder:
    def __init__(self, network: Network, bottleneck: bool, step: float) -> None:
        self.network, self.bottleneck, self.step = network, bottleneck, step
        self.streams: list[str] = []

    def split(self, x: str, half: int) -> list[str]:
        """Start the first streams, with half the channels each."""
        x = self.begun(x)
        return [self.network.add(f"{x}_{i}", SliceChannels((i - 1) * half, half), x) for i in (1, 2)]

    def begun(self, x: str) -> str:
        return self.network.add(f"{x}_stream", Stream(self.step), x) if self.step else x

    def unit(self, name: str, width: int, strides: int, activate: bool) -> None:
        """y1 = x1 + F(x2), y2 = x2 + G(y1) (equation 6). If the shape changes, x1 and x2 are first converted to the new
        one, which can't be inverted: new streams begin."""
        x1, x2 = self.streams
        keeps_shape = strides == 1 and self.network.shape_of(x1)[-1] == width
        f = self.residual(f"{name}_f", x2, width, strides, activate)
        y1 = self.added(f"{name}_f_add", x1, f) if keeps_shape else self.began(f"{name}_f", x1, f, width, strides)
        g = self.residual(f"{name}_g", y1, width, 1)
        y2 = self.added(f"{name}_g_add", x2, g) if keeps_shape else self.began(f"{name}_g", x2, g, width, strides)
        self.streams = [y1, y2]

    def added(self, name: str, x: str, f: str) -> str:
        return self.network.add(name, Coupling(self.step), x, f)

    def began(self, name: str, x: str, f: str, width: int, strides: int) -> str:
        """Convert x to the new shape, by a projection for bottlenecks, otherwise by pooling and zero padding; add f."""
        channels = self.network.shape_of(x)[-1]
        if self.bottleneck:
            x = self.network.add(f"{name}_shortcut", conv(width, 1, strides), x)
        else:
            x = self.network.add(f"{name}_pool", AveragePooling2D(strides), x) if strides > 1 else x
            before = (width - channels) // 2
            x = self.network.add(f"{name}_pad", PadChannels(before, width - channels - before), x)
        return self.begun(self.network.add(f"{name}_add", Add(), x, f))

    def residual(self, name: str, x: str, width: int, strides: int, activate: bool = True) -> str:
        """BatchNorm, ReLU and a convolution, two or three times; no first BatchNorm and ReLU right after the stem."""
        inner = width // 4
        sizes = [(inner, 1), (inner, 3), (width, 1)] if self.bottleneck else [(width, 3), (width, 3)]
        for number, (filters, size) in enumerate(sizes, start=1):
            if activate or number > 1:
                x = self.activated(f"{name}{number}", x)
            x = self.network.add(f"{name}{number}_conv", conv(filters, size, strides if number == 1 else 1), x)
        return x

    def activated(self, name: str, x: str) -> str:
        self.network.add(f"{name}_bn", BatchNormalization(0.9, 1e-5), x)
        return self.network.add(f"{name}_relu", ReLU())

"""RevNets for CIFAR (Gomez et al. 2017, "The reversible residual network: backpropagation without storing activations",
arXiv 1707.04585): table 1, and the shortcuts of the authors' code (github.com/renmengye/revnet-public)."""

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
    GlobalAveragePooling2D,
    Op,
    PadChannels,
    ReLU,
    SliceChannels,
    Softmax,
    Stream,
)
from edgelearn.ops.coupling import STEP


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
    - `step`: rounding step of the streams (see ops/coupling.py); 0 doesn't round.
    """
    builder = _Builder(Network(name, input_shape), bottleneck, step)
    network = builder.network
    network.add("stem_conv", _conv(filters[0], 3))
    builder.streams = builder.split(builder.activated("stem", "stem_conv"), filters[0] // 2)
    for stage, width in enumerate(filters[1:], start=1):
        for unit in range(1, units + 1):
            strides = 2 if stage > 1 and unit == 1 else 1
            builder.unit(f"stage{stage}_unit{unit}", width // 2, strides, activate=(stage, unit) != (1, 1))
    network.add("streams", Concatenate(), *builder.streams)
    builder.activated("last", "streams")
    network.add("avg_pool", GlobalAveragePooling2D())
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


class _Builder:
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
            x = self.network.add(f"{name}_shortcut", _conv(width, 1, strides), x)
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
            x = self.network.add(f"{name}{number}_conv", _conv(filters, size, strides if number == 1 else 1), x)
        return x

    def activated(self, name: str, x: str) -> str:
        self.network.add(f"{name}_bn", BatchNormalization(0.9, 1e-5), x)
        return self.network.add(f"{name}_relu", ReLU())


def _conv(filters: int, size: int, strides: int = 1) -> Op:
    return Conv2D(filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal")

"""Networks of blocks whose kernel sizes and widths a search chose: EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946),
EfficientNet-Lite0 (github.com/tensorflow/tpu, efficientnet/lite) with the layer names of keras.applications, and
ProxylessNAS-Mobile (Cai et al. 2019, arXiv 1812.00332), the backbone of TinyTL (Cai et al. 2020, arXiv 2007.11622) and
the search space of MCUNet (Lin et al. 2020, arXiv 2007.10319)."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import Add, BatchNormalization, Op, ReLU, Sigmoid, SiLU

from .parts import classify, conv, depthwise, divisible, squeeze_excite, unit

# Table 1 of the paper: kernel size, expansion, channels, blocks, stride of the first block.
B0_STAGES = (
    (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)  # fmt: skip
STEM, HEAD = 32, 1280  # channels of the first and the last convolution
SQUEEZE = 0.25  # channels of a squeeze, of the block's input


def efficientnet_b0(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """EfficientNet-B0, table 1 of the paper, without the random dropping of whole blocks. Kernels are initialised as in
    He et al. 2015.

    The input is what Keras's network has after its layers "rescaling" and "normalization": RGB from 0 to 1, less the
    mean of ImageNet, over its deviation.

    Arguments:
    - `alpha`: width multiplier (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `dropout`: rate before the last layer (default 0.2).
    """
    builder = _EfficientNetBuilder(Network(f"efficientnet_b0_{alpha:g}_{input_shape[0]}", input_shape), alpha, False)
    return builder.build(classes, softmax, dropout)


def efficientnet_lite0(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    dropout: float = 0.2,
) -> Network:
    """EfficientNet-Lite0: `efficientnet_b0` without squeeze-and-excitation and with ReLU6, which integers compute
    without loss. `alpha` leaves the first and the last convolution as they are. Input: RGB scaled to [-1, 1]."""
    builder = _EfficientNetBuilder(Network(f"efficientnet_lite0_{alpha:g}_{input_shape[0]}", input_shape), alpha, True)
    return builder.build(classes, softmax, dropout)


class _EfficientNetBuilder:
    def __init__(self, network: Network, alpha: float, lite: bool) -> None:
        self.network, self.alpha, self.lite = network, alpha, lite

    def build(self, classes: int, softmax: bool, dropout: float) -> Network:
        ends = 1.0 if self.lite else self.alpha
        self.unit("stem_", "conv", conv(divisible(STEM * ends), 3, 2))
        for stage, (size, expansion, channels, blocks, stride) in enumerate(B0_STAGES, start=1):
            for block in range(blocks):
                name = f"block{stage}{chr(ord('a') + block)}_"
                self.block(name, size, expansion, divisible(channels * self.alpha), stride if block == 0 else 1)
        self.unit("top_", "conv", conv(divisible(HEAD * ends)))
        return classify(self.network, classes, softmax, pool="avg_pool", dropout=("top_dropout", dropout))

    def block(self, name: str, size: int, expansion: int, filters: int, stride: int) -> None:
        """Expand, filter, squeeze and excite, project, with a shortcut where the shape stays."""
        x = self.network.output
        channels = x.shape[-1]
        if expansion > 1:
            self.unit(name, "expand_conv", conv(channels * expansion), "expand_")
        self.unit(name, "dwconv", depthwise(size, stride))
        if not self.lite:
            names = [f"{name}se_reduce", f"{name}se_expand"]
            squeeze_excite(self.network, names, max(1, int(channels * SQUEEZE)), SiLU(), Sigmoid())
        project, norm = conv(filters), BatchNormalization()
        y = unit(self.network, f"{name}project_conv", project, None, norm, norm_name=f"{name}project_bn")
        if stride == 1 and self.network.shape_of(y) == x.shape:
            self.network.add(f"{name}add", Add(), x.name, y)

    def unit(self, name: str, layer: str, op: Op, part: str = "") -> None:
        names = {"norm_name": f"{name}{part}bn", "activation_name": f"{name}{part}activation"}
        activation = ReLU(6) if self.lite else SiLU()
        unit(self.network, f"{name}{layer}", op, activation, BatchNormalization(), **names)


# Figure 4 of the paper: channels, stride of the first block, and (kernel size, expansion) of each block.
PROXYLESS_STAGES = (
    (16, 1, ((3, 1),)),
    (32, 2, ((5, 3), (3, 3))),
    (40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
    (80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
    (96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
    (192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
    (320, 1, ((7, 6),)),
)


def proxylessnas_mobile(
    input_shape: tuple[int, int, int] = (224, 224, 3), alpha: float = 1.0, classes: int = 1000, softmax: bool = True
) -> Network:
    """ProxylessNAS-Mobile, figure 4 of the paper. Input: RGB, each channel with mean 0 and deviation 1. Kernels are
    initialised as in He et al. 2015.

    Arguments:
    - `alpha`: width multiplier (default 1); MCUNet's authors compare with 0.3.
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"proxylessnas_mobile_{alpha:g}_{input_shape[0]}", input_shape)
    norm = BatchNormalization(0.9, 1e-3)

    def add(name: str, op: Op, activation: Op | None = ReLU(6)) -> str:  # noqa: B008
        return unit(network, name, op, activation, norm)

    add("stem", conv(divisible(STEM * alpha), 3, 2, ((1, 1), (1, 1))))
    for stage, (channels, stride, blocks) in enumerate(PROXYLESS_STAGES, start=1):
        for number, (size, expansion) in enumerate(blocks, start=1):
            name, x = f"stage{stage}_block{number}", network.output
            if expansion > 1:
                add(f"{name}_expand", conv(x.shape[-1] * expansion))
            sides = (size // 2, size // 2)
            add(f"{name}_depthwise", depthwise(size, stride if number == 1 else 1, (sides, sides)))
            y = add(f"{name}_project", conv(divisible(channels * alpha)), None)
            if network.shape_of(y) == x.shape:
                network.add(f"{name}_add", Add(), x.name, y)
    add("head", conv(divisible(HEAD * max(alpha, 1.0))))
    return classify(network, classes, softmax)

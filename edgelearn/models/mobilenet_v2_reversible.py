"""MobileNet V2 whose ten residual blocks are additive couplings, so that their inputs need not be stored."""

from __future__ import annotations

from edgelearn.graph import Network, reversible
from edgelearn.ops import Concatenate, Coupling, SliceChannels, Stream
from edgelearn.ops.coupling import STEP

from .mobilenet_v2 import CIFAR_STAGES, Builder, mobilenet_v2


def mobilenet_v2_reversible(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """`mobilenet_v2` with two streams of full width (see graph/reversible.py): layers, parameters and multiply-adds are
    the same, and the seven blocks that change shape are unchanged. With step 0 the streams are not rounded."""
    return reversible(mobilenet_v2(input_shape, alpha, classes, softmax), step=step)


def mobilenet_v2_split_cifar(
    input_shape: tuple[int, int, int] = (32, 32, 3),
    alpha: float = 1.0,
    classes: int = 10,
    softmax: bool = True,
    step: float = STEP,
) -> Network:
    """`mobilenet_v2_cifar` with streams of half the channels and two couplings instead of each residual block (Gomez et
    al. 2017, arXiv 1707.04585, equation 6): half the memory of two full streams, and fewer parameters."""
    name = f"mobilenet_v2_split_cifar_{alpha:g}_{input_shape[0]}"
    return _SplitBuilder(name, input_shape, alpha, 0.9, step).build(1, CIFAR_STAGES, classes, softmax)


class _SplitBuilder(Builder):
    def __init__(self, name: str, input_shape: tuple[int, int, int], alpha: float, momentum: float, step: float):
        super().__init__(name, input_shape, alpha, momentum)
        self.step = step
        self.streams: list[str] = []

    def bottleneck(self, name: str, expansion: int, channels: int, stride: int) -> None:
        """Add a block; one that changes shape reads the concatenated streams."""
        width = self.network.output.shape[-1] * (2 if self.streams else 1)
        if stride == 1 and channels == width:
            self.couple(name, expansion, channels // 2)
            return
        if self.streams:
            self.network.add(f"{name}_input", Concatenate(), *self.streams)
            self.streams = []
        self.transform(name, self.network.output.name, expansion, channels, stride)

    def couple(self, name: str, expansion: int, half: int) -> None:
        network = self.network
        if not self.streams:
            x = network.output.name
            x = network.add(f"{x}_stream", Stream(self.step)) if self.step else x
            self.streams = [
                network.add(f"{name}_{half_name}", SliceChannels(start, half), x)
                for half_name, start in (("first", 0), ("second", half))
            ]
        for function in ("f", "g"):
            x, other = self.streams
            y = self.transform(f"{name}_{function}", other, expansion, half, 1)
            self.streams = [other, network.add(f"{name}_{function}_add", Coupling(self.step), x, y)]

"""Networks that are compiled fast."""

from edgelearn.graph import Network
from edgelearn.models import mobilenet_v1
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU
from tests.networks import chain


def small() -> Network:
    return chain(
        "small", (8, 8, 3), conv=Conv2D(16, 3, padding="same", use_bias=False), bn=BatchNormalization(), relu=ReLU(),
        pool=GlobalAveragePooling2D(), dense=Dense(10),
    )  # fmt: skip


def mobilenet(classes: int = 1000) -> Network:
    """The network of the benchmark, of an eighth of the pixels and a quarter of the channels."""
    return mobilenet_v1((64, 64, 3), classes=classes, alpha=0.25)


def residual() -> Network:
    """Two residual blocks, the second with a shortcut of its own."""
    network = Network("residual", (16, 16, 3))

    def convolution(name: str, op: Conv2D, *below: str, activation: bool = False) -> str:
        network.add(name, op, *below)
        network.add(f"{name}_bn", BatchNormalization())
        return network.add(f"{name}_relu", ReLU()) if activation else f"{name}_bn"

    shortcut = convolution("stem", Conv2D(16, 3, padding="same", use_bias=False), activation=True)
    for number, strides in enumerate((1, 2)):
        inner = Conv2D(16 * strides, 3, strides=strides, padding="same", use_bias=False)
        below = convolution(f"inner_{number}", inner, shortcut, activation=True)
        below = convolution(f"outer_{number}", Conv2D(16 * strides, 3, padding="same", use_bias=False), below)
        if strides == 2:
            shortcut = convolution("shortcut", Conv2D(32, 1, strides=2, use_bias=False), shortcut)
        network.add(f"sum_{number}", Add(), below, shortcut)
        shortcut = network.add(f"sum_{number}_relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(10))
    return network

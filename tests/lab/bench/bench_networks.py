"""Networks that are compiled fast."""

from edgelearn.graph import Network
from edgelearn.models import resnet18_cifar
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU


def small() -> Network:
    net = Network("small", (8, 8, 3))
    net.add("conv", Conv2D(16, 3, padding="same", use_bias=False))
    net.add("bn", BatchNormalization())
    net.add("relu", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("dense", Dense(10))
    return net


def narrow() -> Network:
    """With residual blocks."""
    return resnet18_cifar((16, 16, 3), alpha=0.25)

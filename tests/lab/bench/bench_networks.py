"""Networks that are compiled fast."""

from edgelearn.graph import Network
from edgelearn.models import resnet18_cifar
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU
from tests.networks import chain


def small() -> Network:
    return chain(
        "small", (8, 8, 3), conv=Conv2D(16, 3, padding="same", use_bias=False), bn=BatchNormalization(), relu=ReLU(),
        pool=GlobalAveragePooling2D(), dense=Dense(10),
    )  # fmt: skip


def narrow() -> Network:
    """With residual blocks."""
    return resnet18_cifar((16, 16, 3), alpha=0.25)

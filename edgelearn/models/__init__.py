"""A network a file."""

from .bcresnet import bcresnet
from .ds_cnn import ds_cnn
from .mobilenet_v1 import mobilenet_v1
from .mobilenet_v2 import mobilenet_v2, mobilenet_v2_cifar
from .resnet import resnet18, resnet18_cifar
from .vgg16 import vgg16

__all__ = [
    "bcresnet", "ds_cnn", "mobilenet_v1", "mobilenet_v2", "mobilenet_v2_cifar", "resnet18", "resnet18_cifar", "vgg16",
]  # fmt: skip

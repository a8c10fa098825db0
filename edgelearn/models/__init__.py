"""Network architectures."""

from .bcresnet import bcresnet
from .ds_cnn import ds_cnn
from .ds_resnet import ds_resnet
from .efficientnet import efficientnet_b0
from .mobilenet_v1 import mobilenet_v1
from .mobilenet_v2 import mobilenet_v2, mobilenet_v2_cifar
from .mobilenet_v2_reversible import mobilenet_v2_reversible, mobilenet_v2_split_cifar
from .mobilenet_v3 import mobilenet_v3_large, mobilenet_v3_small
from .resnet import resnet18, resnet18_cifar
from .revnet import revnet, revnet38, revnet110, revnet164
from .vgg16 import vgg16

__all__ = [
    "bcresnet", "ds_cnn", "ds_resnet", "efficientnet_b0", "mobilenet_v1", "mobilenet_v2", "mobilenet_v2_cifar",
    "mobilenet_v2_reversible", "mobilenet_v2_split_cifar", "mobilenet_v3_large", "mobilenet_v3_small", "resnet18",
    "resnet18_cifar", "revnet", "revnet38", "revnet110", "revnet164", "vgg16",
]  # fmt: skip

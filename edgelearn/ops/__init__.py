"""One file per op: shapes, forward, backward, a float64 reference, and the launches that compute it."""

from .activation import ReLU
from .base import LinearOp, Op, PlainOp, Weight
from .batchnorm import BatchNormalization
from .convolution import Conv2D
from .dense import Dense
from .depthwise import DepthwiseConv2D
from .emit import Emitter, Epilogue, GradientTarget, Traits
from .optimizers import SGD, Adam, AdamW, Optimizer
from .pooling import GlobalAveragePooling2D
from .softmax_cross_entropy import Softmax
from .tensor import Tensor, pack, unpack

__all__ = [
    "SGD", "Adam", "AdamW", "BatchNormalization", "Conv2D", "Dense", "DepthwiseConv2D", "Emitter", "Epilogue",
    "GlobalAveragePooling2D", "GradientTarget", "LinearOp", "Op", "Optimizer", "PlainOp", "ReLU", "Softmax", "Tensor",
    "Traits", "Weight", "pack", "unpack",
]  # fmt: skip

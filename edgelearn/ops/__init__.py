"""One file per op: shapes, forward, backward, a float64 reference, and the launches that compute it."""

from .activation import ELU, SELU, Activation, Clip, HardSigmoid, LeakyReLU, ReLU, Sigmoid, Softplus, Softsign, Tanh
from .arithmetic import Divide, Greater, Less, Maximum, Minimum, Multiply, Subtract, Where
from .base import LinearOp, Op, Weight
from .batchnorm import BatchNormalization
from .binary_cross_entropy import BinaryCrossentropy, BinaryFocalCrossentropy
from .broadcast import BroadcastTo
from .categorical_cross_entropy import CategoricalCrossentropy, CategoricalFocalCrossentropy
from .channels import PadChannels, SliceChannels
from .compute import Compute
from .convolution import Conv2D
from .convolution_transpose import Conv2DTranspose
from .cosine import CodewordHinge, PositiveHinge
from .coupling import Coupling, Stream
from .dense import Dense
from .depthwise import DepthwiseConv2D
from .dropout import Dropout, SpatialDropout2D
from .emit import Emitter, Epilogue, Traits
from .formats import Format, NumberFormat
from .function import Function
from .gated import GELU, HardSwish, Mish, SiLU
from .half import BFloat16, Float16
from .local_response import LocalResponseNormalization
from .loss import Loss, Losses
from .losses import LOSSES
from .matmul import MatMul
from .merge import Add, Concatenate
from .minimum_entropy import MinimumEntropy
from .normalization import GroupNormalization, LayerNormalization
from .observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Observer, Percentile, RunningMinMax
from .optimizers import LAMB, SGD, Adam, AdamW, Lion, Optimizer, RMSprop
from .pad import Pad
from .permute import Transpose
from .pooling import AveragePooling2D, GlobalAveragePooling2D, MaxPooling2D
from .prototypical import Prototypical
from .reductions import GlobalMaxPooling2D, Max, Mean, Sum
from .regression import Huber, MeanAbsoluteError, MeanSquaredError
from .reshape import Flatten, Reshape
from .resize import AdaptiveAveragePooling2D, Resize, UpSampling2D
from .scale import Bias, Constant, PReLU, Scale
from .slice import Slice
from .softmax_cross_entropy import LogSoftmax, Softmax, SoftmaxCrossEntropy
from .space_to_depth import SpaceToDepth
from .sub_spectral_normalization import SubSpectralNormalization
from .take import Embedding, Take
from .target import Target
from .tensor import Tensor, pack, unpack
from .unary import Abs, Exp, Log, Reciprocal, Rescaling, Rsqrt, Sqrt, Square
from .zero_padding import ZeroPadding2D

__all__ = [
    "DSGC",
    "ELU",
    "GELU",
    "LAMB",
    "LOSSES",
    "SELU",
    "SGD",
    "Abs",
    "Activation",
    "Adam",
    "AdamW",
    "AdaptiveAveragePooling2D",
    "Add",
    "AveragePooling2D",
    "BFloat16",
    "BatchNormalization",
    "Bias",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "BroadcastTo",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "Clip",
    "CodewordHinge",
    "Compute",
    "Concatenate",
    "Constant",
    "Conv2D",
    "Conv2DTranspose",
    "Coupling",
    "CurrentMinMax",
    "Dense",
    "DepthwiseConv2D",
    "Divide",
    "Dropout",
    "Embedding",
    "Emitter",
    "Epilogue",
    "Exp",
    "Fixed",
    "Flatten",
    "Float16",
    "Format",
    "Function",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling2D",
    "Greater",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Huber",
    "InHindsightMinMax",
    "LayerNormalization",
    "LeakyReLU",
    "Less",
    "LinearOp",
    "Lion",
    "LocalResponseNormalization",
    "Log",
    "LogSoftmax",
    "Loss",
    "Losses",
    "MatMul",
    "Max",
    "MaxPooling2D",
    "Maximum",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Minimum",
    "MinimumEntropy",
    "Mish",
    "Multiply",
    "NumberFormat",
    "Observer",
    "Op",
    "Optimizer",
    "PReLU",
    "Pad",
    "PadChannels",
    "Percentile",
    "PositiveHinge",
    "Prototypical",
    "RMSprop",
    "ReLU",
    "Reciprocal",
    "Rescaling",
    "Reshape",
    "Resize",
    "Rsqrt",
    "RunningMinMax",
    "Scale",
    "SiLU",
    "Sigmoid",
    "Slice",
    "SliceChannels",
    "Softmax",
    "SoftmaxCrossEntropy",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "SpatialDropout2D",
    "Sqrt",
    "Square",
    "Stream",
    "SubSpectralNormalization",
    "Subtract",
    "Sum",
    "Take",
    "Tanh",
    "Target",
    "Tensor",
    "Traits",
    "Transpose",
    "UpSampling2D",
    "Weight",
    "Where",
    "ZeroPadding2D",
    "pack",
    "unpack",
]  # fmt: skip

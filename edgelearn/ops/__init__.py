"""One file per op: shapes, forward, backward, a float64 reference, and the launches that compute it."""

from .activation import Activation, ReLU, SiLU
from .base import LinearOp, Op, Weight
from .batchnorm import BatchNormalization
from .channels import PadChannels, SliceChannels
from .convolution import Conv2D
from .coupling import Coupling, Stream
from .dense import Dense
from .depthwise import DepthwiseConv2D
from .dropout import Dropout, SpatialDropout2D
from .emit import Emitter, Epilogue, Traits
from .formats import Format, NumberFormat
from .half import Float16
from .loss import Loss
from .merge import Add, Concatenate
from .minimum_entropy import MinimumEntropy
from .observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax, Observer, Percentile, RunningMinMax
from .optimizers import LAMB, SGD, Adam, AdamW, Lion, Optimizer, RMSprop
from .pad import Pad
from .permute import Transpose
from .pooling import AveragePooling2D, GlobalAveragePooling2D, MaxPooling2D
from .prototypical import Prototypical
from .reductions import GlobalMaxPooling2D, Max, Mean, Sum
from .reshape import Flatten, Reshape
from .slice import Slice
from .softmax_cross_entropy import Softmax, SoftmaxCrossEntropy
from .space_to_depth import SpaceToDepth
from .sub_spectral_normalization import SubSpectralNormalization
from .target import Target
from .tensor import Tensor, pack, unpack
from .zero_padding import ZeroPadding2D

__all__ = [
    "DSGC",
    "LAMB",
    "SGD",
    "Activation",
    "Adam",
    "AdamW",
    "Add",
    "AveragePooling2D",
    "BatchNormalization",
    "Concatenate",
    "Conv2D",
    "Coupling",
    "CurrentMinMax",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Emitter",
    "Epilogue",
    "Fixed",
    "Flatten",
    "Float16",
    "Format",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling2D",
    "InHindsightMinMax",
    "LinearOp",
    "Lion",
    "Loss",
    "Max",
    "MaxPooling2D",
    "Mean",
    "MinimumEntropy",
    "NumberFormat",
    "Observer",
    "Op",
    "Optimizer",
    "Pad",
    "PadChannels",
    "Percentile",
    "Prototypical",
    "RMSprop",
    "ReLU",
    "Reshape",
    "RunningMinMax",
    "SiLU",
    "Slice",
    "SliceChannels",
    "Softmax",
    "SoftmaxCrossEntropy",
    "SpaceToDepth",
    "SpatialDropout2D",
    "Stream",
    "SubSpectralNormalization",
    "Sum",
    "Target",
    "Tensor",
    "Traits",
    "Transpose",
    "Weight",
    "ZeroPadding2D",
    "pack",
    "unpack",
]  # fmt: skip

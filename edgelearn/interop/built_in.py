"""The package's own formats: each of these files adds its entries to the tables."""

from . import (
    bcresnet_npz,
    exporting,
    keras_h5,
    native,
    read_keras,
    read_onnx,
    read_saved_model,
    read_tflite,
    state_dict,
)

__all__ = [
    "bcresnet_npz", "exporting", "keras_h5", "native", "read_keras", "read_onnx", "read_saved_model", "read_tflite",
    "state_dict",
]  # fmt: skip

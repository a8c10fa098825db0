"""The package's own formats: each of these files adds its entries to the tables."""

from . import bcresnet_npz, exporting, from_graphdef, from_keras, from_tflite, keras_h5, native, onnx_file, state_dict

__all__ = [
    "bcresnet_npz", "exporting", "from_graphdef", "from_keras", "from_tflite", "keras_h5", "native", "onnx_file",
    "state_dict",
]  # fmt: skip

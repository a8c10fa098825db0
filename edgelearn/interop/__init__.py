"""Models and weights in files: a format a file, each with an entry in the table of `formats`."""

from . import bcresnet_npz, exports, keras_h5, native
from .formats import (
    Format,
    Writer,
    find_format,
    find_writer,
    read_model,
    register,
    register_writer,
    weights_of_a_network,
    write_model,
)
from .model_file import ModelFile

__all__ = [
    "Format", "ModelFile", "Writer", "bcresnet_npz", "exports", "find_format", "find_writer", "keras_h5", "native",
    "read_model", "register", "register_writer", "weights_of_a_network", "write_model",
]  # fmt: skip

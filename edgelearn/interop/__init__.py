"""Models and weights in files: a format a file, each with an entry in the table of `formats`."""

from . import bcresnet_npz, keras_h5, native
from .formats import (
    Format,
    GraphReader,
    find_format,
    graph_format,
    import_graph,
    read_model,
    register,
    weights_of_a_network,
)  # fmt: skip
from .model_file import ModelFile

__all__ = [
    "Format", "GraphReader", "ModelFile", "bcresnet_npz", "find_format", "graph_format", "import_graph", "keras_h5",
    "native", "read_model", "register", "weights_of_a_network",
]  # fmt: skip

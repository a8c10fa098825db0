"""Models and weights in files: a format a file, each with an entry in the table of `formats`."""

from .find import check_network_name, find_network
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
from .writers import Writer, find_writer, register_writer, write_model

__all__ = [
    "Format", "GraphReader", "ModelFile", "Writer", "check_network_name", "find_format", "find_network", "find_writer",
    "graph_format", "import_graph", "read_model", "register", "register_writer", "weights_of_a_network", "write_model",
]  # fmt: skip

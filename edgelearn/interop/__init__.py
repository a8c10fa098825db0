"""Models and weights in files: a format a file, each with an entry in the table of `formats`."""

from .formats import (
    FileFormat,
    GraphReader,
    Writer,
    check_network_name,
    find_format,
    find_network,
    find_writer,
    graph_format,
    import_graph,
    read_model,
    register,
    register_writer,
    weights_of_a_network,
    write_model,
)  # fmt: skip
from .safetensors import ModelFile

__all__ = [
    "FileFormat", "GraphReader", "ModelFile", "Writer", "check_network_name", "find_format", "find_network",
    "find_writer", "graph_format", "import_graph", "read_model", "register", "register_writer", "weights_of_a_network",
    "write_model",
]  # fmt: skip

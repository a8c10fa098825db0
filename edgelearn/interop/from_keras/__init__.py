"""Whole Keras models become trainable networks: .keras archives, and HDF5 files with structure and weights."""

from pathlib import Path

from edgelearn.graph import Network

from .. import keras_h5
from ..formats import Format, GraphReader, graph_format, register, weights_of_a_network
from ..model_file import ModelFile
from .handlers import HANDLERS, NEAREST
from .reader import read_archive, read_hdf5

__all__ = ["read_archive", "read_hdf5"]

_whole = graph_format("Keras HDF5", (), b"", GraphReader(read_hdf5, HANDLERS, NEAREST))


def _read(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    """With a network, its weights by names of layers; without one, the model that the file describes."""
    return _whole.read(path, None, skip) if network is None else _weights(path, network, skip)


_weights = weights_of_a_network(keras_h5.read_weights)
register(graph_format("Keras", (".keras",), b"", GraphReader(read_archive, HANDLERS, NEAREST)))
register(Format("Keras HDF5", (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n", _read, _whole.graph))

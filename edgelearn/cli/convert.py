"""Convert a model: from any format that is read to any that is written, by the suffixes of the files.

Weights without a graph need --network. A model with ranges, such as one that `edgelearn finetune --precision int8`
trained, can be written with --int8.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, find_writer, read_model, write_model
from edgelearn.interop.weights import check_weights

from . import names
from .files import written
from .numbers import whole


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, and what is needed to read some formats."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="the file")
    add("--network", type=names.network, metavar="NETWORK",
        help=f"for files that hold weights alone: {names.NETWORK}")  # fmt: skip
    add("--inputs", nargs="+", default=[], metavar="TENSOR", help="tensors at which the network begins")
    add("--outputs", nargs="+", default=[], metavar="TENSOR", help="tensors at which it ends (default: the file's)")
    add("--input-shape", nargs="+", type=whole(1), metavar="N",
        help="of an example, such as 224 224 3, where the file leaves it open")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("out", metavar="OUT", type=written, help="the file to write; its suffix names the format")
    parser.add_argument("--int8", action="store_true", help="integers, by the model's ranges (TFLite, ONNX)")


def network_of(options: argparse.Namespace) -> Network | None:
    """The network that --network names."""
    from edgelearn.interop import find_network

    return find_network(options.network).network if options.network else None


def read(options: argparse.Namespace) -> ModelFile:
    """Read the model that the options name. Raises FormatError if that can't be."""
    shape = tuple(options.input_shape) if options.input_shape else None
    return read_model(
        options.model, network_of(options), inputs=tuple(options.inputs), outputs=tuple(options.outputs),
        input_shape=shape,
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    writer = find_writer(options.out)
    file = read(options)
    check_weights(file.network, file.weights)
    if Path(options.out).resolve() == Path(options.model).resolve():
        raise FormatError(f"{options.out} is the file that is read: give another name.")
    write_model(options.out, file, int8=options.int8)
    print(f"{options.out}: {writer.name}, '{file.network.name}', {file.network.count():,} parameters")

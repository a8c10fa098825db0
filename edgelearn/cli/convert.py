"""Convert a model: from any format that is read to any that is written, by the suffixes of the files.

Weights without a graph need --network. --int8 writes integers: by the ranges of a model that `edgelearn finetune
--precision int8` trained, or by those that pictures of --images give.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError, FormatError
from edgelearn.experiments.finetune.preprocessing import PIXELS, pictures_of
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, find_writer, read_model, write_model
from edgelearn.interop.weights import check_weights
from edgelearn.train import Model

from . import names
from .answer import Answer
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
    add = parser.add_argument
    add("--int8", action="store_true", help="integers, by the model's ranges or those of --images (TFLite, ONNX)")
    add("--images", metavar="DIR", help="pictures that give the ranges for --int8, JPEG or PNG, in subfolders too")
    add("--examples", type=whole(1), default=100, metavar="N", help="of these pictures at most (default: 100)")
    add("--pixels", choices=tuple(PIXELS), help="what pictures become, if the model doesn't say")


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


def _pictures(options: argparse.Namespace, file: ModelFile) -> np.ndarray:
    """Examples of pictures spread over the folder. Raises DataError if it has none."""
    pictures = pictures_of(file.network, file.preprocessing, options.pixels)
    paths = sorted(p for p in Path(options.images).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise DataError(f"{options.images} has no pictures (.jpg, .jpeg, .png).")
    count = min(options.examples, len(paths))
    chosen = [paths[n * len(paths) // count] for n in range(count)]
    return np.concatenate([pictures.load(str(path)) for path in chosen])


def run(options: argparse.Namespace) -> Answer:
    writer = find_writer(options.out)
    file = read(options)
    check_weights(file.network, file.weights)
    if Path(options.out).resolve() == Path(options.model).resolve():
        raise FormatError(f"{options.out} is the file that is read: give another name.")
    if options.images is None:
        write_model(options.out, file, int8=options.int8)
    else:
        model = Model(file.network, file.network.initialize() | file.weights)
        model.class_names, model.preprocessing = file.class_names, dict(file.preprocessing)
        model.metadata = dict(file.metadata)
        model.export(options.out, _pictures(options, file), int8=options.int8)
    print(f"{options.out}: {writer.name}, '{file.network.name}', {file.network.count():,} parameters")
    found = {"out": options.out, "format": writer.name, "network": file.network.name}
    return Answer(found | {"parameters": file.network.count()})

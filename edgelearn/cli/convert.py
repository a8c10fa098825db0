"""Convert a model: from any format that is read to any that is written, by the suffixes of the files.

Weights without a graph need --network. --int8 and --full-integer write integers: by the ranges of a model that
`edgelearn finetune --precision int8` trained, or by those that examples give: pictures of --images or an array of
--calibration. The lines printed are the size, the bytes of weights by type, and the layers that stay float32, with the
reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError, FormatError
from edgelearn.experiments.finetune import PIXELS, pictures_of
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, find_writer, read_model, write_model
from edgelearn.interop.weights import check_weights
from edgelearn.train import Model

from . import parser as names
from .answer import Answer
from .parser import whole, written


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
    types = parser.add_mutually_exclusive_group()
    types.add_argument("--int8", action="store_true",
                       help="integers, by the model's ranges or those of examples (TFLite, ONNX)")  # fmt: skip
    types.add_argument("--full-integer", action="store_true",
                       help="integers alone, inputs and outputs among them, for microcontrollers (TFLite)")  # fmt: skip
    types.add_argument("--float16", action="store_true", help="weights in float16 (TFLite, ONNX)")
    examples = parser.add_mutually_exclusive_group()
    examples.add_argument(
        "--images", metavar="DIR", help="pictures that give the ranges for integers, JPEG or PNG, in subfolders too",
    )  # fmt: skip
    examples.add_argument("--calibration", metavar="FILE",
                          help="instead of pictures: an array (examples, ...) in NumPy's format .npy")  # fmt: skip
    add("--examples", type=whole(1), default=100, metavar="N", help="of these examples at most (default: 100)")
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


def _examples(options: argparse.Namespace, file: ModelFile) -> np.ndarray | None:
    """Examples that give ranges, if the options name some. Raises DataError if there are none."""
    if options.calibration is None:
        return None if options.images is None else _pictures(options, file)
    try:
        array = np.load(options.calibration, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{options.calibration} is no array in NumPy's format .npy ({error!s:.200}).") from None
    if not isinstance(array, np.ndarray) or array.shape[1:] != file.network.input_shape:
        raise DataError(
            f"{options.calibration}: '{file.network.name}' needs examples of shape (n, "
            f"{', '.join(map(str, file.network.input_shape))}), not {getattr(array, 'shape', 'several arrays')}."
        )
    return array[:: max(1, len(array) // options.examples)][: options.examples]


def run(options: argparse.Namespace) -> Answer:
    writer = find_writer(options.out)
    file = read(options)
    check_weights(file.network, file.weights)
    if Path(options.out).resolve() == Path(options.model).resolve():
        raise FormatError(f"{options.out} is the file that is read: give another name.")
    types = {"int8": options.int8, "full_integer": options.full_integer, "float16": options.float16}
    examples = _examples(options, file)
    if examples is None:
        written = write_model(options.out, file, **types)
    else:
        model = Model(file.network, file.network.initialize() | file.weights)
        model.class_names, model.preprocessing = file.class_names, dict(file.preprocessing)
        model.metadata = dict(file.metadata)
        written = model.export(options.out, examples, **types)
    print(f"'{file.network.name}', {file.network.count():,} parameters", written, sep="\n")
    found = {"out": options.out, "format": writer.name, "network": file.network.name}
    sizes = {"bytes": written.bytes, "types": written.types, "float32": written.float32}
    return Answer(found | {"parameters": file.network.count()} | sizes)

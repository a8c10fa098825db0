"""Commands on model files: look into them, convert them, write them as bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.bundles.cortex_m import Board
from edgelearn.bundles.fitting import PRECISIONS as OF_BOARDS
from edgelearn.bundles.fitting import leave_ranges, plan_for_board
from edgelearn.bundles.native import write_client
from edgelearn.bundles.write import TARGETS, bundle
from edgelearn.compile import Combination
from edgelearn.compile.search import budgets
from edgelearn.errors import DataError, FormatError, PlanError, UsageError
from edgelearn.experiments.finetune import PIXELS, pictures_of
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, find_network, find_writer, read_model, write_model
from edgelearn.interop.state_dict import read_arrays
from edgelearn.interop.weights import check_weights
from edgelearn.ops import SGD, Optimizer
from edgelearn.ops.optimizers import as_optimizer
from edgelearn.train import Model
from edgelearn.train.loading import as_network, combined
from edgelearn.train.planning import PRECISIONS

from .answer import Answer, log, show
from .parser import ALPHA, DEVICE, NETWORK, argument, budget, command, is_network, network, setting, writable

MODEL = argument(help="the file", metavar="MODEL")
NETWORK_OF_WEIGHTS = network(None, f"for files that hold weights alone: {NETWORK}")
INPUTS = setting((), "tensors at which the network begins", metavar="TENSOR")
OUTPUTS = setting((), "tensors at which it ends (default: the file's)", metavar="TENSOR")
SHAPE = setting((), "of an example, such as 224 224 3, where the file leaves it open", minimum=1, metavar="N")
CONSTANTS = setting((), "values of inputs that are the same for all examples, such as sr=16000", metavar="INPUT=VALUE")
WRITTEN = {
    "bytes": "size of the file", "types": "bytes of weights and other constants by type",
    "float32": "layers that stay float32 where integers were asked for, with the reason",
}  # fmt: skip


def _named(name: str | None) -> Network | None:
    return find_network(name).network if name else None


def _values(constants: tuple[str, ...]) -> dict[str, Any]:
    """Values by input. Raises UsageError for one that is no INPUT=VALUE."""
    found = {}
    for text in constants:
        name, _, value = text.rpartition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            raise UsageError(f"--constants takes INPUT=VALUE, such as sr=16000, not '{text}'.") from None
    return found


@command("inspect", one={
    "name, source": "of the network, and the file", "supported": "true if every operator is here",
    "inputs, outputs": "shapes by name, without the batch", "parameters, multiply_adds": "numbers",
    "saved_bytes": "of an example's activations that the backward pass reads, or null",
    "layers": "name, op, inputs, shape, parameters, multiply_adds, saved_bytes, and true or false: forward, "
              "backward, trainable, trained",
    "problems": "operators without a counterpart: kind, name, attributes, reason, nearest", "notes": "in words",
})  # fmt: skip
def inspect(
    model: str = MODEL,
    network: str | None = NETWORK_OF_WEIGHTS,
    inputs: tuple[str, ...] = INPUTS,
    outputs: tuple[str, ...] = OUTPUTS,
    input_shape: tuple[int, ...] = SHAPE,
    constants: tuple[str, ...] = CONSTANTS,
) -> Answer:
    """Show what is in a model, operator by operator, before anything runs.

    All operators that edgelearn doesn't have are listed, with their attributes and what works instead; the exit status
    is then 1.
    """
    from edgelearn.train.inspection import inspect

    found = inspect(
        model, _named(network), inputs=inputs, outputs=outputs, input_shape=input_shape or None,
        constants=_values(constants),
    )  # fmt: skip
    print(found)
    return Answer(found.to_dict(), 0 if found.supported else 1)


@command("convert", one={"out": "the file", "format": "name", "network": "name", "parameters": "number"} | WRITTEN)
def convert(
    model: str = MODEL,
    network: str | None = NETWORK_OF_WEIGHTS,
    inputs: tuple[str, ...] = INPUTS,
    outputs: tuple[str, ...] = OUTPUTS,
    input_shape: tuple[int, ...] = SHAPE,
    constants: tuple[str, ...] = CONSTANTS,
    out: Path = argument(help="the file to write; its suffix names the format", check=writable, metavar="OUT"),
    int8: bool = setting(False, "integers, by the model's ranges or those of examples (TFLite, ONNX)", group="types"),
    full_integer: bool = setting(
        False, "integers alone, inputs and outputs among them, for microcontrollers (TFLite)", group="types"
    ),
    float16: bool = setting(False, "weights in float16 (TFLite, ONNX)", group="types"),
    images: str | None = setting(
        None, "pictures that give the ranges for integers, JPEG or PNG, in subfolders too", group="examples",
        metavar="DIR",
    ),
    calibration: str | None = setting(
        None, "instead of pictures: an array (examples, ...) in NumPy's format .npy", group="examples", metavar="FILE"
    ),
    examples: int = setting(100, "of these examples at most", minimum=1, metavar="N"),
    pixels: str | None = setting(None, "what pictures become, if the model doesn't say", choices=tuple(PIXELS)),
) -> dict:  # fmt: skip
    """Convert a model: from any format that is read to any that is written, by the suffixes of the files.

    Weights without a graph need --network. --int8 and --full-integer write integers: by the ranges of a model that
    `edgelearn finetune --precision int8` trained, or by those that examples give: pictures of --images or an array of
    --calibration. The lines printed are the size, the bytes of weights by type, and the layers that stay float32, with
    the reason.
    """
    writer = find_writer(out)
    file = read_model(
        model, _named(network), inputs=inputs, outputs=outputs, input_shape=input_shape or None,
        constants=_values(constants),
    )  # fmt: skip
    check_weights(file.network, file.weights)
    if out.resolve() == Path(model).resolve():
        raise FormatError(f"{out} is the file that is read: give another name.")
    types = {"int8": int8, "full_integer": full_integer, "float16": float16}
    if calibration:
        found = _calibration(calibration, examples, file)
    else:
        found = _pictures(images, examples, pixels, file) if images else None
    if found is None:
        written = write_model(out, file, **types)
    else:
        trained = Model(file.network, file.network.initialize() | file.weights)
        trained.class_names, trained.preprocessing = file.class_names, dict(file.preprocessing)
        trained.metadata = dict(file.metadata)
        written = trained.export(out, found, **types)
    print(f"'{file.network.name}', {file.network.count():,} parameters", written, sep="\n")
    return {
        "out": out, "format": writer.name, "network": file.network.name, "parameters": file.network.count(),
        **{name: getattr(written, name) for name in WRITTEN},
    }  # fmt: skip


def _pictures(folder: str, most: int, pixels: str | None, file: ModelFile) -> np.ndarray:
    """Examples of pictures spread over the folder. Raises DataError if it has none."""
    pictures = pictures_of(file.network, file.preprocessing, pixels)
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise DataError(f"{folder} has no pictures (.jpg, .jpeg, .png).")
    count = min(most, len(paths))
    return np.concatenate([pictures.load(str(paths[n * len(paths) // count])) for n in range(count)])


def _calibration(path: str, most: int, file: ModelFile) -> np.ndarray:
    """Examples of an array. Raises DataError if they don't fit the network."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is no array in NumPy's format .npy ({error!s:.200}).") from None
    if not isinstance(array, np.ndarray) or array.shape[1:] != file.network.input_shape:
        raise DataError(
            f"{path}: '{file.network.name}' needs examples of shape (n, "
            f"{', '.join(map(str, file.network.input_shape))}), not {getattr(array, 'shape', 'several arrays')}."
        )
    return array[:: max(1, len(array) // most)][:most]


SRAM = "memory of the microcontroller, of target cortex-m (default: 256 KiB if --flash is given)"
FLASH = "its flash (default: 1 MiB if --sram is given)"


@command("bundle", "a training as C sources, which run without Python", one={
    "folder, target, device": "names", "memory_bytes": "planned, when it runs",
    "weights_bytes, code_bytes": "of model.weights, and of the kernels' texts", "kernels": "different ones",
    "launches, multiply_adds": "of a step",
})  # fmt: skip
def write(
    model: str = argument(help=NETWORK, check=is_network),
    out: Path = setting(help="the folder to write", metavar="DIR"),
    train: tuple[str, ...] = setting(
        (), "layers to train: patterns such as 'dense', or 'from LAYER' (default: those that the network trains; with "
        "--sram or --flash as many as fit)",
        metavar="LAYERS",
    ),
    batch_size: int = setting(1, "examples of a step", minimum=1),
    last_batches: tuple[int, ...] = setting((), "smaller numbers of examples that a step may have, too", minimum=1),
    micro_batch: int | None = setting(None, "examples in memory at once (default: those of a step)", minimum=1),
    budget: str | None = budget(None, "such as '20 MB' of device memory, or '8 MB stored' of activations"),
    precision: str | None = setting(
        None, "(default: fp32; with --sram or --flash what fits)", choices=PRECISIONS
    ),
    optimizer: str = setting("sgd", "its name in Keras; the learning rate is given at each step"),
    momentum: float = setting(0.0, "of SGD", minimum=0),
    batchnorm: str = setting("auto", choices=("auto", "moving", "batch")),
    target: str = setting("opencl", choices=tuple(TARGETS)),
    sram: str | None = setting(None, SRAM, check=budgets, metavar="SIZE"),
    flash: str | None = setting(None, FLASH, check=budgets, metavar="SIZE"),
    examples: Path | None = setting(
        None, "with --sram or --flash: a file .npz of x and y, whose ranges int8 begins with", metavar="FILE"
    ),
    client: bool = setting(False, "with a client of a federation, for `federated gateway`; opencl and c"),
    alpha: float = ALPHA,
    device: str | None = DEVICE,
) -> dict[str, Any]:  # fmt: skip
    chosen = SGD(momentum=momentum) if optimizer.lower() == "sgd" else as_optimizer(optimizer)
    if sram or flash:
        trained, micro_batch = _for_board(
            as_network(model, alpha), Board.of(sram, flash), batch_size, micro_batch, precision, train, chosen,
            batchnorm, examples,
        )  # fmt: skip
    else:
        if examples:
            raise PlanError("--examples are for --sram and --flash.")
        combination = Combination(precision or "fp32", trained=train)
        trained = combined(as_network(model, alpha), combination, chosen, batchnorm=batchnorm, device=device)
    written = bundle(
        trained, out, batch_size=batch_size, micro_batch=micro_batch, budget=budget, last_batches=last_batches,
        target=target, sram=sram, flash=flash,
    )  # fmt: skip
    if client:
        write_client(out)
    print(written)
    return written.to_dict()


def _for_board(
    network: Network | Model, board: Board, batch_size: int, micro_batch: int | None, precision: str | None,
    train: tuple[str, ...], optimizer: Optimizer, batchnorm: str, examples: Path | None,
) -> tuple[Model, int]:  # fmt: skip
    """(the chosen model for a board, its micro-batch); what isn't given is chosen."""
    found = plan_for_board(
        network, board, batch_size, precision=(precision,) if precision else OF_BOARDS,
        trained=[train] if train else None, micro_batch=micro_batch, optimizer=optimizer, batchnorm=batchnorm,
        known_ranges=bool(examples), progress=log,
    )  # fmt: skip
    show(found.table())
    model = found.chosen()
    if examples and model.precision.quantizes:
        arrays = read_arrays(examples)
        if missing := [name for name in ("x", "y") if name not in arrays]:
            raise DataError(f"{examples} has no array '{missing[0]}'. It needs x (examples) and y (their int labels).")
        leave_ranges(model, arrays["x"].astype(np.float32), arrays["y"])
    return model, found.best.micro_batch

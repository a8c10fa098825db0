"""The command that writes bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.bundles.client import write_client
from edgelearn.bundles.cortex_m import Board
from edgelearn.bundles.fitting import PRECISIONS as OF_BOARDS
from edgelearn.bundles.fitting import leave_ranges, plan_for_board
from edgelearn.bundles.write import TARGETS, bundle
from edgelearn.compile import Combination
from edgelearn.compile.search import budgets
from edgelearn.errors import DataError, PlanError
from edgelearn.experiments.config import setting
from edgelearn.graph import Network
from edgelearn.interop.state_dict import read_arrays
from edgelearn.ops import SGD, Optimizer
from edgelearn.ops.optimizers import as_optimizer
from edgelearn.train import Model
from edgelearn.train.loading import as_network, combined
from edgelearn.train.planning import PRECISIONS

from .answer import log, show
from .parser import ALPHA, DEVICE, NETWORK, argument, budget, command, is_network

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

"""The command that writes bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.bundles.client import write_client
from edgelearn.bundles.write import TARGETS, bundle
from edgelearn.compile import Combination
from edgelearn.experiments.config import setting
from edgelearn.ops import SGD
from edgelearn.ops.optimizers import as_optimizer
from edgelearn.train.loading import as_network, combined
from edgelearn.train.planning import PRECISIONS

from .parser import ALPHA, DEVICE, NETWORK, argument, budget, command, is_network


@command("bundle", "a training as C sources, which run without Python", one={
    "folder, target, device": "names", "memory_bytes": "planned, when it runs",
    "weights_bytes, code_bytes": "of model.weights, and of the kernels' texts", "kernels": "different ones",
    "launches, multiply_adds": "of a step",
})  # fmt: skip
def write(
    model: str = argument(help=NETWORK, check=is_network),
    out: Path = setting(help="the folder to write", metavar="DIR"),
    train: tuple[str, ...] = setting(
        (), "layers to train: patterns such as 'dense', or 'from LAYER' (default: those that the network trains)",
        metavar="LAYERS",
    ),
    batch_size: int = setting(1, "examples of a step", minimum=1),
    last_batches: tuple[int, ...] = setting((), "smaller numbers of examples that a step may have, too", minimum=1),
    micro_batch: int | None = setting(None, "examples in memory at once (default: those of a step)", minimum=1),
    budget: str | None = budget(None, "such as '20 MB' of device memory, or '8 MB stored' of activations"),
    precision: str = setting("fp32", choices=PRECISIONS),
    optimizer: str = setting("sgd", "its name in Keras; the learning rate is given at each step"),
    momentum: float = setting(0.0, "of SGD", minimum=0),
    batchnorm: str = setting("auto", choices=("auto", "moving", "batch")),
    target: str = setting("opencl", choices=tuple(TARGETS)),
    client: bool = setting(False, "with a client of a federation, for `federated gateway`; opencl and c"),
    alpha: float = ALPHA,
    device: str | None = DEVICE,
) -> dict[str, Any]:  # fmt: skip
    chosen = SGD(momentum=momentum) if optimizer.lower() == "sgd" else as_optimizer(optimizer)
    combination = Combination(precision, trained=train)
    trained = combined(as_network(model, alpha), combination, chosen, batchnorm=batchnorm, device=device)
    written = bundle(
        trained, out, batch_size=batch_size, micro_batch=micro_batch, budget=budget, last_batches=last_batches,
        target=target,
    )  # fmt: skip
    if client:
        write_client(out)
    print(written)
    return written.to_dict()

"""Read models from files."""

from __future__ import annotations

from pathlib import Path

from edgelearn.device import Device
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, read_model
from edgelearn.ops import Optimizer

from .model import Model
from .state import TrainingState


def load(
    path: str | Path, network: Network | None = None, *, device: str | Device | None = None, seed: int | None = None,
    skip: tuple[str, ...] = (), optimizer: Optimizer | None = None, **settings,
) -> Model:  # fmt: skip
    """Read a model from a file that `Model.save` wrote, or weights from a file of another format.

    >>> model = edgelearn.load("flowers.safetensors")
    >>> model = edgelearn.load("mobilenet_1_0_224_tf.h5", el.models.mobilenet_v1(classes=5), skip=("dense",))

    Arguments:
    - `path`: the file; for the formats see edgelearn.interop.
    - `network`: the graph that the weights are for; not needed for files that `Model.save` wrote.
    - `device`: as in Model.
    - `seed`: as in Model (default: the file's, else 0).
    - `skip`: layers whose weights are not read but drawn anew, such as a classifier for other classes.
    - `optimizer`, and `settings` of Model.compile: compile the model with these, and continue the training that the
      file holds (default: don't).

    Raises FormatError if the file is damaged, of an unknown format or of another network or training, or if it holds no
    graph and `network` is missing.
    """
    file: ModelFile = read_model(path, network, tuple(skip))
    position = dict(file.position)
    saved_seed, batchnorm = position.pop("seed", 0), position.pop("batchnorm", "auto")
    chosen_seed: int = saved_seed if seed is None else seed
    model = Model(file.network, file.network.initialize(chosen_seed) | file.weights, device, chosen_seed)
    model.preprocessing, model.class_names, model.metadata = (
        dict(file.preprocessing),
        file.class_names,
        dict(file.metadata),
    )
    if optimizer is not None:
        model.compile(optimizer, **{"batchnorm": batchnorm} | settings)
        if position:
            changing = {name: file.weights[name] for name in model.changing}
            tensors, _ = TrainingState(changing, file.optimizer, file.ranges).to_tensors()
            model.restore(tensors, position)
    return model

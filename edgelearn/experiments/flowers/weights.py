"""The network to fine-tune and its pretrained weights."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.interop import keras_h5, keras_published, safetensors
from edgelearn.models import mobilenet_v1

IN_DATA = Path("weights") / "mobilenet_1_0_224_tf.h5"  # under the data folder
SAMPLE = Path(__file__).parent / "mobilenet_v1_025_96.safetensors"


@dataclass(frozen=True)
class Pretrained:
    """A network with pretrained weights and a newly initialised Dense layer.

    Arguments:
    - `network`, `weights`: the graph, and float32 arrays by "layer/role".
    - `size`: side of its input, in pixels.
    - `origin`: "package", "option", "EDGELEARN_DATA" or "keras".
    - `description`: the same in words.
    """

    network: Network
    weights: dict[str, np.ndarray]
    size: int
    origin: str
    description: str

    @property
    def sha256(self) -> str:
        """Hash of all weights in the order of their names."""
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(self.weights[name].tobytes())
        return digest.hexdigest()


def load_pretrained(
    classes: int, seed: int, weights: str | None = None, data: str | None = None, sample: bool = False,
    download: bool = True,
) -> Pretrained:  # fmt: skip
    """Load MobileNet V1 1.0/224, or with `sample` the package's MobileNet V1 0.25/96, pretrained on drawings.

    Arguments:
    - `classes`, `seed`: outputs of the new Dense layer, and the seed of its weights.
    - `weights`: a Keras HDF5 file, or "sample" (default: from the folder `data`, else as Keras publishes it).
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `download`: use the network.

    Raises FormatError for a damaged file or one of another network, DataError if no weights are found.
    """
    if sample or weights == "sample":
        network = mobilenet_v1((96, 96, 3), 0.25, classes)
        found = safetensors.read_weights(SAMPLE)
        description = "MobileNet V1 0.25/96 of the package, pretrained on other drawings."
        return Pretrained(network, _with_head(network, found, seed), 96, "package", description)
    network = mobilenet_v1(classes=classes)
    folder = data or os.environ.get("EDGELEARN_DATA")
    in_data = Path(folder) / IN_DATA if folder else None
    if weights:
        path, origin = Path(weights), "option"
    elif in_data is not None and in_data.exists():
        path, origin = in_data, "EDGELEARN_DATA"
    else:
        path, origin = keras_published.fetch(download), "keras"
    found = keras_h5.read_weights(path, network, skip=("dense",))
    description = f"MobileNet V1 1.0/224, ImageNet weights from {path.name} ({origin})."
    return Pretrained(network, _with_head(network, found, seed), 224, origin, description)


def _with_head(network: Network, body: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    fresh = network.initialize(seed)
    missing = [name for name in fresh if name not in body and not name.startswith("dense/")]
    if missing:
        raise FormatError(
            f"The pretrained weights lack '{missing[0]}': reinstall edgelearn, or give others with --weights."
        )
    return {name: body.get(name, array) for name, array in fresh.items()}

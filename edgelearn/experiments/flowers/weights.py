"""Which network is fine-tuned, and where its weights come from."""

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
    """A network with a fresh Dense head, its pretrained weights, and a sentence on where they come from."""

    network: Network
    weights: dict[str, np.ndarray]
    size: int
    origin: str
    description: str

    @property
    def sha256(self) -> str:
        """Of all values, by name: the same for the same weights, wherever they come from."""
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(self.weights[name].tobytes())
        return digest.hexdigest()


def load_pretrained(
    classes: int, seed: int, weights: str | None = None, data: str | None = None, sample: bool = False,
    download: bool = True,
) -> Pretrained:  # fmt: skip
    """MobileNet V1 1.0/224 from `weights` (a Keras HDF5 file), else from the data folder, else as Keras publishes it;
    or with `sample` the small 0.25/96 one of the package, pretrained on drawings (see pretrain.py).

    Raises FormatError for a file that isn't what it should be, DataError when nothing can be found or fetched.
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

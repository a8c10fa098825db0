"""Networks of embeddings, and the layers and losses that train them."""

from __future__ import annotations

from dataclasses import replace

from edgelearn.data.audio.features import BC_RESNET, FrontEnd
from edgelearn.graph import Network
from edgelearn.models import bcresnet, ds_cnn, ds_resnet
from edgelearn.models.ds_cnn import SIZES
from edgelearn.ops import Concatenate, Dense, Loss, Prototypical, ReLU, SoftmaxCrossEntropy

from .config import KeywordsConfig

FRONT_END: FrontEnd = BC_RESNET
SECONDS = 1.0
_DS_CNN = "ds-cnn-"
DUMMY_LAYERS = "dummies_dense", "dummies"  # generate dummy prototypes


def make_network(config: KeywordsConfig) -> Network:
    """The embedding network of a configuration, for features of one second by FRONT_END."""
    frames, bands = FRONT_END.shape(round(FRONT_END.rate * SECONDS))
    if config.network == "bcresnet":
        return bcresnet((bands, frames, 1), config.width, classes=None)
    if config.network.startswith(_DS_CNN):
        size = SIZES[config.network.removeprefix(_DS_CNN).upper()]
        return ds_cnn((frames, bands, 1), replace(size, filters=round(config.width * size.filters)), classes=None)
    return ds_resnet((frames, bands, 1), config.width, config.size)


def add_head(network: Network, config: KeywordsConfig, words: int) -> Loss:
    """Add the layers that the method trains with behind the embedding. Returns the loss. `words`: number of classes."""
    if config.method == "classify":
        network.add("classifier", Dense(words))
        return SoftmaxCrossEntropy(config.label_smoothing)
    dummies = config.dummy_prototypes if config.method == "dummy-prototypes" else 0
    if dummies:
        add_dummies(network, dummies)
    return Prototypical(
        config.num_classes, config.shots, config.distance, config.scale, dummies, config.dummy_temperature
    )


def add_dummies(network: Network, dummies: int) -> None:
    """Add the layers from which `ops.Prototypical` generates dummy prototypes."""
    embedding, (size,) = network.output.name, network.output.shape
    network.add(DUMMY_LAYERS[0], Dense(size))
    network.add("dummies_relu", ReLU())
    network.add(DUMMY_LAYERS[1], Dense(dummies * size))
    network.add("with_dummies", Concatenate(), embedding, DUMMY_LAYERS[1])

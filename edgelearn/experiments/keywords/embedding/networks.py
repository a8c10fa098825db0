"""Networks that can be trained as embeddings, and what is added to them for training."""

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


def make_network(config: KeywordsConfig) -> Network:
    """The embedding, for features of a second by FRONT_END."""
    frames, bands = FRONT_END.shape(round(FRONT_END.rate * SECONDS))
    if config.network == "bcresnet":
        return bcresnet((bands, frames, 1), config.width, classes=None)
    if config.network.startswith(_DS_CNN):
        size = SIZES[config.network.removeprefix(_DS_CNN).upper()]
        return ds_cnn((frames, bands, 1), replace(size, filters=round(config.width * size.filters)), classes=None)
    return ds_resnet((frames, bands, 1), config.width, config.size)


def add_head(network: Network, config: KeywordsConfig, words: int) -> Loss:
    """Add what the method wants behind the embedding; returns the loss."""
    if config.method == "classify":
        network.add("classifier", Dense(words))
        return SoftmaxCrossEntropy(config.label_smoothing)
    dummies = config.dummies if config.method == "dummies" else 0
    if dummies:
        add_dummies(network, dummies)
    return Prototypical(config.ways, config.shots, config.distance, config.scale, dummies, config.relief)


def add_dummies(network: Network, dummies: int) -> None:
    """What ops.Prototypical makes dummy prototypes of, behind the embedding."""
    embedding, (size,) = network.output.name, network.output.shape
    network.add("dummies_dense", Dense(size))
    network.add("dummies_relu", ReLU())
    network.add("dummies", Dense(dummies * size))
    network.add("with_dummies", Concatenate(), embedding, "dummies")

"""What comes with the package, so that words can be enrolled without data: a small network that was trained on
synthesised words (pretrain.py), other ones than those of the embedded sample, by other synthesised speakers.

It has never heard a human voice. It is there to try everything with; for real use train one on recordings, or import
one that was.
"""

from __future__ import annotations

from pathlib import Path

from edgelearn.device import Device
from edgelearn.graph import Network
from edgelearn.io import safetensors
from edgelearn.models import ds_cnn
from edgelearn.models.ds_cnn import Size

from .learners import Embedder

SAMPLE = Path(__file__).parent / "ds_cnn_synthesised.safetensors"
_SIZE = Size(filters=64, blocks=4, strides=(2, 2), block_strides=(2, 2))


def sample_network(classes: int | None = None) -> Network:
    """A plain depthwise-separable network on the features of BC-ResNet, a quarter of the size of a DS-CNN-M."""
    return ds_cnn((101, 40, 1), _SIZE, classes)


def sample_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network, an embedding of 64 values."""
    return Embedder(sample_network(), safetensors.read_weights(SAMPLE), device=device)

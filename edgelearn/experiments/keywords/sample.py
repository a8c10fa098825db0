"""What comes with the package, so that words can be enrolled without data: a small network that was trained on
synthesised words (pretrain.py), other ones than those of the embedded sample, by other synthesised speakers.

It has never heard a human voice. It is there to try everything with; for real use train one on recordings, or import
one that was.
"""

from __future__ import annotations

from pathlib import Path

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.features import BC_RESNET
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.device import Device
from edgelearn.graph import Network
from edgelearn.keywords.embedder_file import load_embedder
from edgelearn.keywords.learners import Embedder
from edgelearn.models import ds_cnn
from edgelearn.models.ds_cnn import Size

SAMPLE = Path(__file__).parent / "ds_cnn_synthesised.safetensors"
FRONT_END = BC_RESNET
OTHER_VOICES = 2  # the seed of speakers that neither the network nor the embedded sample has
_SIZE = Size(filters=64, blocks=4, strides=(2, 2), block_strides=(2, 2))


def sample_network(classes: int | None = None) -> Network:
    """A plain depthwise-separable network on the features of BC-ResNet."""
    return ds_cnn((*FRONT_END.shape(FRONT_END.rate), 1), _SIZE, classes)


def sample_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network, an embedding of 64 values."""
    return load_embedder(SAMPLE, device)


def other_words(seed: int = 0) -> ClipDataset:
    """Clips of synthesised words that nobody has enrolled, to tell a threshold by."""
    return embedded_words(speakers=10, takes=1, seed=seed + OTHER_VOICES)

"""The package's network for keywords and clips to try it with: enrolment works without data.

The network was trained on synthesised words (`tools/pretrain_keywords.py`): other words than those of the embedded
sample, by other synthesised speakers. It has never heard a human voice. For real use train a network on recordings, or
import one.
"""

from __future__ import annotations

from pathlib import Path

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.synthetic import embedded_words
from edgelearn.device import Device

from .embedder_file import load_embedder
from .learners import Embedder

SAMPLE = Path(__file__).parent / "ds_cnn_synthesised.safetensors"
_OTHER_VOICES = 2  # seed of speakers that neither the network nor the embedded sample has


def sample_embedder(device: str | Device | None = None) -> Embedder:
    """The package's network, with embeddings of 64 values. `device`: part of a device's name (default: chosen)."""
    return load_embedder(SAMPLE, device)


def other_words(seed: int = 0) -> ClipDataset:
    """Clips of synthesised words that nobody has enrolled, to set a threshold by. `seed` draws the speakers."""
    return embedded_words(speakers=10, takes=1, seed=seed + _OTHER_VOICES)

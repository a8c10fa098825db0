"""Find an embedder: in a file, in a run folder, in the data folder, or in the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgelearn.data.tfds import data_folder
from edgelearn.device import Device
from edgelearn.errors import DataError
from edgelearn.interop import bcresnet_npz
from edgelearn.keywords.embedder_file import load_embedder
from edgelearn.keywords.learners import Embedder
from edgelearn.keywords.sample import sample_embedder
from edgelearn.models import bcresnet

from .embedding import make_embedder
from .embedding.weights import read_run

IN_DATA = Path("weights") / "bcresnet1_speech_commands.npz"  # under the data folder
SAMPLE_NAME = "sample"


def find_embedder(
    network: str | None = None, data: str | None = None, device: str | Device | None = None
) -> tuple[Embedder, str]:
    """Returns an embedder, and a sentence on where it comes from.

    Arguments:
    - `network`: "sample", for the package's; the folder of a run of `edgelearn keywords train`; or a file: an embedder
      (`keywords.embedder_file`) or a BC-ResNet-1 trained in PyTorch (.npz). Default: the BC-ResNet-1 in `data`, else
      the package's.
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).

    Raises FormatError for another file or folder, DataError for a data folder that doesn't exist.
    """
    folder = data_folder(data)
    if folder and not Path(folder).is_dir():
        raise DataError(
            f"There is no folder {folder}, which --data or EDGELEARN_DATA names. Name one that exists, or none."
        )
    if network is None and folder and (Path(folder) / IN_DATA).is_file():
        network = str(Path(folder) / IN_DATA)
    if network is None or network == SAMPLE_NAME:
        return sample_embedder(device), (
            "Network: the package's small DS-CNN, trained on synthesised words. It has never heard a human voice: for "
            "real use, give another one with --network FILE, or in EDGELEARN_DATA."
        )
    if Path(network).is_dir():
        config, weights = read_run(Path(network))
        return make_embedder(replace(config, device=device), weights), f"Network: that of the run {Path(network).name}."
    if Path(network).suffix != ".npz":
        return load_embedder(network, device), f"Network: {network}."
    built = bcresnet(classes=None)
    weights = bcresnet_npz.read_weights(network, built, skip=("classifier",))
    return Embedder(built, weights, device=device), f"Network: BC-ResNet-1 of {network}, without its classifier."

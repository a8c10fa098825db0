"""Facts of this machine for the home page: devices and their load, data sets and weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from edgelearn.data import intents, motion
from edgelearn.data.tfds import roots
from edgelearn.errors import DeviceError
from edgelearn.experiments import characters
from edgelearn.experiments.flowers import IN_DATA as MOBILENET
from edgelearn.experiments.keywords.embedding import IN_DATA as BCRESNET
from edgelearn.experiments.keywords.episodes import ARABIC, ENGLISH
from edgelearn.interop.keras_h5 import published_path

SECONDS = 120  # that a self-test of all devices may take


@dataclass(frozen=True)
class Source:
    """A data set or weights.

    Arguments:
    - `name`, `use`: what it is, and what uses it.
    - `found`: where it is, "" if it is missing.
    - `remedy`: how to get it.
    """

    name: str
    use: str
    found: str
    remedy: str


def devices() -> list[dict[str, Any]]:
    """The devices with their self-tests, as `edgelearn devices --json` finds them, in a process of its own: this one
    holds no device. Raises DeviceError if that fails."""
    command = [sys.executable, "-m", "edgelearn.cli", "devices", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"The devices gave no answer in {SECONDS} s. `edgelearn doctor` says more.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DeviceError(f"The devices can't be listed: {last} `edgelearn doctor` says more.")
    return json.loads(done.stdout)


def load() -> dict[str, Any]:
    """The load of this machine: share of its processors since the last call, and bytes of memory; of each GPU of NVIDIA
    share and memory."""
    memory = psutil.virtual_memory()
    found = {"processors": psutil.cpu_percent() / 100, "memory": memory.total, "free": memory.available, "gpus": []}
    query = ["nvidia-smi", "--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout.splitlines()
        for name, used, held, total in (line.split(", ") for line in lines):
            gpu = {"name": name, "used": int(used) / 100, "held": int(held) << 20, "memory": int(total) << 20}
            found["gpus"].append(gpu)
    except (OSError, subprocess.SubprocessError, ValueError):
        pass  # there is none
    return found


def sources() -> list[dict[str, Any]]:
    """Data sets and weights: where each is, or how to get it. Looks at names alone, and reads no data."""
    folder = os.environ.get("EDGELEARN_DATA") or ""
    named = f"in the folder that EDGELEARN_DATA names ({folder or 'not set'})"
    download = "Online it is downloaded when it is first used (pip install 'edgelearn[tensorflow]'); or put it"

    def collection(name: str) -> str:
        return next((str(root / name) for root in roots(folder or None) if (root / name).is_dir()), "")

    def below(*parts: str) -> str:
        path = Path(folder, *parts)
        return str(path) if folder and path.exists() else ""

    weights = below(*MOBILENET.parts) or (str(published_path()) if published_path().exists() else "")
    entries = [
        Source("Drawn flowers, synthesised words, small networks", "every sample", "in the package", ""),
        Source("tf_flowers, 3,670 photographs", "flowers, speed, memory", collection("tf_flowers"),
               f"{download} as tensorflow_datasets/tf_flowers {named}."),
        Source("CIFAR-10", "precision, training from scratch", collection("cifar10"),
               f"{download} as tensorflow_datasets/cifar10 {named}."),
        Source("MobileNet V1 1.0/224, ImageNet", "flowers", weights,
               f"{download} as {MOBILENET} {named}."),
        Source("Speech Commands, test set", "keywords", below(ENGLISH),
               f"Unpack it as {ENGLISH} {named}, a subfolder for each word."),
        Source("Arabic Speech Commands", "keywords, federated", below(ARABIC),
               f"Unpack it as {ARABIC} {named}, a subfolder for each word."),
        Source("BC-ResNet-1, Speech Commands", "keywords", below(*BCRESNET.parts), f"Put it as {BCRESNET} {named}."),
        Source("Motion of 23 people, phone and watch", "sequences", below(motion.FILE),
               f"Put DATA of GeoTecINIT/sp-sw-har-dataset, packed, as {motion.FILE} {named}."),
        Source("tinyshakespeare", "sequences, federated", below(characters.FILE),
               f"Put input.txt of karpathy/char-rnn as {characters.FILE} {named}."),
        Source("CLINC150, 150 intents", "sequences", below(intents.FILE),
               f"Put data_full.json of clinc/oos-eval, in gzip, as {intents.FILE} {named}."),
    ]  # fmt: skip
    return [asdict(each) for each in entries]

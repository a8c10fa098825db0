"""The ImageNet weights that Keras publishes, fetched by Keras itself in a process of its own (this one never imports
TensorFlow)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgelearn.errors import DataError

SECONDS_TO_CONNECT = 10
SECONDS = 300
SCRIPT = """
import os, socket, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
socket.setdefaulttimeout(float(sys.argv[2]))
import keras
getattr(keras.applications, sys.argv[1])(weights="imagenet")
"""
FOLDER = Path.home() / ".keras" / "models"
FILES = {"MobileNet": "mobilenet_1_0_224_tf.h5"}
REMEDY = (
    "Give a file with --weights FILE (Keras HDF5), set EDGELEARN_DATA to a folder that has "
    "weights/mobilenet_1_0_224_tf.h5, or use the package's small network with --weights sample."
)


class NetworkError(DataError):
    """The weights could not be downloaded."""


def fetch(application: str, download: bool = True) -> Path:
    """Path of the published weights of keras.applications.`application`, downloaded by Keras if they aren't in its
    folder yet. Raises NetworkError within seconds where there is no network."""
    path = FOLDER / FILES[application]
    if path.exists():
        return path
    if not download:
        raise DataError(f"{path} is not there, and downloading is off. {REMEDY}")
    command = [sys.executable, "-c", SCRIPT, application, str(SECONDS_TO_CONNECT)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NetworkError(f"Keras's weights did not arrive within {SECONDS} seconds. {REMEDY}") from None
    if path.exists() and done.returncode == 0:
        return path
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if "ModuleNotFoundError" in reason:
        raise DataError(f"Downloading needs Keras: pip install 'edgelearn[tensorflow]'. Or: {REMEDY}")
    raise NetworkError(f"Keras could not download its weights ({reason}). {REMEDY}")

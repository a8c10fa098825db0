"""The ImageNet weights that Keras publishes, fetched by Keras itself in a process of its own (this one never imports
TensorFlow)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from edgelearn.errors import DataError, DownloadError

SECONDS_TO_CONNECT = 8
SECONDS = 300
URL = "https://storage.googleapis.com/tensorflow/keras-applications/mobilenet/mobilenet_1_0_224_tf.h5"
CONNECT = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='HEAD'))"
SCRIPT = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
keras.applications.MobileNet(weights="imagenet")
"""
REMEDY = (
    "Give a Keras HDF5 file (--weights FILE; in Python weights=FILE), set EDGELEARN_DATA to a folder that has "
    "weights/mobilenet_1_0_224_tf.h5, or use the package's small network (--weights sample; weights='sample')."
)


def fetch(download: bool = True) -> Path:
    """Path of MobileNet's published weights, downloaded by Keras if they aren't in its folder yet.

    Raises DownloadError within ten seconds where there is no network, DataError when Keras is missing or may not
    download.
    """
    path = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "models" / URL.rsplit("/")[-1]
    if path.exists():
        return path
    if not download:
        raise DataError(f"{path} is not there, and downloading is off. {REMEDY}")
    if find_spec("keras") is None:
        raise DataError(f"Downloading needs Keras: pip install 'edgelearn[tensorflow]'. Or: {REMEDY}")
    _run(CONNECT, SECONDS_TO_CONNECT, f"{URL} cannot be reached")
    _run(SCRIPT, SECONDS, "Keras could not download its weights")
    if not path.exists():
        raise DownloadError(f"Keras did not leave its weights in {path}. {REMEDY}")
    return path


def _run(script: str, seconds: float, problem: str) -> None:
    """Run Python in a process of its own, which can be ended whatever it waits for (looking up a name has no limit)."""
    try:
        done = subprocess.run([sys.executable, "-c", script, URL], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise DownloadError(f"{problem}: no end after {seconds} seconds. {REMEDY}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DownloadError(f"{problem} ({reason}). {REMEDY}")

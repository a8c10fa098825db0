"""A small SavedModel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgelearn.interop.formats import read_model

from .attacks import environment

SCRIPT = """
import sys, tensorflow as tf
module = tf.Module()
module.kernel, module.matrix = tf.Variable(tf.ones((3, 3, 3, 4))), tf.Variable(tf.ones((4, 2)))
@tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
def call(x):
    y = tf.nn.relu(tf.nn.conv2d(x, module.kernel, 1, "SAME"))
    return {"scores": tf.nn.softmax(tf.reduce_mean(y, (1, 2)) @ module.matrix)}
module.call = call
tf.saved_model.save(module, sys.argv[1], signatures=call)
"""
FILES = {"graph": "saved_model.pb", "index": "variables/variables.index",
         "values": "variables/variables.data-00000-of-00001"}  # fmt: skip


def maker(what: str):
    """Write a SavedModel, and return the path of one of its FILES."""

    def make(folder: Path) -> Path:
        command = [sys.executable, "-c", SCRIPT, str(folder / "model")]
        subprocess.run(command, check=True, capture_output=True, env=environment(TF_CPP_MIN_LOG_LEVEL="3"))
        return folder / "model" / FILES[what]

    return make


def read(path: Path) -> None:
    """Read the SavedModel that a file belongs to."""
    read_model(path.parent if path.name == "saved_model.pb" else path.parents[1])

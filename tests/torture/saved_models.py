"""A small SavedModel, and changes that fit the structure of protocol buffers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

from edgelearn.interop.formats import read_model

from .attacks import environment
from .graphdef import varint
from .mutations import damage_bytes

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
DEPTH = 12  # of messages in messages


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


def damage(data: bytes, rng: Random) -> bytes:
    """Change one field of a protocol buffer, at any depth; the lengths of the messages around it fit."""
    return _damaged(data, rng, DEPTH) or damage_bytes(data, rng)


def _damaged(data: bytes, rng: Random, depth: int) -> bytes | None:
    """The message with one field changed, None if it isn't a message."""
    fields = _fields(data)
    if not fields:
        return None
    place = rng.randrange(len(fields))
    key, content = fields[place]
    action = rng.random()
    if action < 0.05:
        fields.pop(place)
    elif action < 0.1:
        fields.append(fields[place])
    elif key & 7 == 2:
        inner = _damaged(content, rng, depth - 1) if depth and rng.random() < 0.9 else None
        fields[place] = (key, damage_bytes(content, rng) if inner is None else inner)
    else:
        fields[place] = (key, varint(rng.choice((0, 1, 2, 255, 1 << 31, (1 << 64) - 1))) if key & 7 == 0 else content)
    return b"".join(varint(key) + (varint(len(content)) if key & 7 == 2 else b"") + content for key, content in fields)


def _fields(data: bytes) -> list[tuple[int, bytes]] | None:
    """(key, content) of each field, None if the bytes aren't a message."""
    fields, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, begin = key & 7, at
        if kind == 2:
            length, begin = _varint(data, at)
            at = begin + length
        elif kind == 0:
            _, at = _varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, len(data))
        if not key >> 3 or at > len(data):
            return None
        fields.append((key, data[begin:at]))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it; behind the end if it is cut off."""
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at
    return 0, len(data) + 1

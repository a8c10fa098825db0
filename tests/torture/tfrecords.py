"""Prepared data of TensorFlow Datasets: a small TFRecord file written by hand, and lengths with checksums that fit.

TensorFlow is imported once and not in a process for each file, as edgelearn does it: that would take hours.
"""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from random import Random

from edgelearn.data import tfds, tfds_reader
from edgelearn.errors import DataError
from edgelearn.interop.read_saved_model import crc32c

from .graphdef import field

NAME, CLASSES, EXAMPLES = "small", 3, 6
REQUEST = {"split": "train", "feature": "image", "label": "label"}
LENGTHS = (0, 1, 1 << 16, 1 << 28, 1 << 31, 1 << 40, (1 << 64) - 1)


def checksum(data: bytes) -> int:
    """The checksum of TFRecord files: Castagnoli's, masked."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(content: bytes, length: int | None = None) -> bytes:
    head = struct.pack("<Q", len(content) if length is None else length)
    return head + struct.pack("<I", checksum(head)) + content + struct.pack("<I", checksum(content))


def example(picture: bytes, label: int) -> bytes:
    """A tf.train.Example."""
    features = {"image": field(1, field(1, picture)), "label": field(3, field(1, label))}
    entries = (field(1, field(1, name) + field(2, value)) for name, value in features.items())
    return field(1, b"".join(entries))


def make(folder: Path) -> Path:
    prefix = "tensorflow_datasets.core.features."
    features = {
        "image": {"image": {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", "3"]}},
                  "pythonClassName": f"{prefix}image_feature.Image"},
        "label": {"classLabel": {"numClasses": str(CLASSES)},
                  "pythonClassName": f"{prefix}class_label_feature.ClassLabel"},
    }  # fmt: skip
    split = {"name": "train", "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "9",
             "shardLengths": [str(EXAMPLES)]}  # fmt: skip
    info = {"name": NAME, "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    described = {"featuresDict": {"features": features}, "pythonClassName": f"{prefix}features_dict.FeaturesDict"}
    (folder / "features.json").write_text(json.dumps(described))
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "label.labels.txt").write_text("".join(f"{number}\n" for number in range(CLASSES)))
    path = folder / f"{NAME}-train.tfrecord-00000-of-00001"
    path.write_bytes(b"".join(record(example(bytes(range(40 + i)), i % CLASSES)) for i in range(EXAMPLES)))
    return path


def damage(data: bytes, rng: Random) -> bytes:
    """Change one record: its length, its protocol buffer, its place; with checksums that fit."""
    contents, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        contents.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    place, kind = rng.randrange(len(contents)), rng.randrange(4)
    changed = bytearray(contents[place])
    changed[rng.randrange(len(changed))] = rng.randrange(256)
    records = [record(content) for content in contents]
    if kind == 0:
        records[place] = record(contents[place], rng.choice(LENGTHS))
    elif kind == 1:
        records[place] = record(bytes(changed))
    elif kind == 2:
        records[place] = record(contents[place][: rng.randrange(len(contents[place]))])
    else:
        records.insert(place, records.pop() * rng.choice((0, 2, 100)))
    return b"".join(records)


def read(path: Path) -> None:
    """Read as edgelearn's child process does, and what it writes as edgelearn does. Raises DataError."""
    output = io.BytesIO()
    try:
        tfds_reader.write(REQUEST | {"prepared": str(path.parent)}, output)
    except SystemExit as error:
        raise DataError(str(error)) from None
    output.seek(0)
    assert json.loads(output.readline())["count"] == EXAMPLES
    list(tfds.records(output))

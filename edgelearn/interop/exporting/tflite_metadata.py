"""The metadata that TFLite's own tools read: how inputs are made, and the names of classes.

It is a flatbuffer in the model's entry "TFLITE_METADATA"; the class names are the file labels.txt of a zip archive
behind the model. Schema:
https://github.com/tensorflow/tflite-support/blob/master/tensorflow_lite_support/metadata/metadata_schema.fbs
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

NAME, SIGNATURE, LABELS = "TFLITE_METADATA", b"M001", "labels.txt"
NORMALIZATION, AXIS_LABELS = 1, 2  # of the enumerations ProcessUnitOptions and AssociatedFileType


def metadata_bytes(name: str, preprocessing: Mapping[str, Any], class_names: Sequence[str]) -> bytes:
    """Return the flatbuffer. Pictures' {"mean", "deviation"} of pixels / 255 become mean and std of pixels."""
    b = flatbuffers.Builder(1024)
    units, files = [], []
    if "mean" in preprocessing and ("deviation" in preprocessing or "std" in preprocessing):
        spread, scale = ("std", 1) if "std" in preprocessing else ("deviation", 255)
        mean, std = (np.float32(preprocessing[key]) * np.float32(scale) for key in ("mean", spread))
        options = _table(b, {0: b.CreateNumpyVector(mean), 1: b.CreateNumpyVector(std)})
        units = [_table(b, {1: options}, {0: NORMALIZATION})]
    if class_names:
        files = [_table(b, {0: b.CreateString(LABELS)}, {2: AXIS_LABELS})]
    ends = [_table(b, {0: b.CreateString(end), **({4: _vector(b, units)} if end == "input" and units else {}),
                       **({6: _vector(b, files)} if end == "output" and files else {})})
            for end in ("input", "output")]  # fmt: skip
    graph = _table(b, {2: _vector(b, ends[:1]), 3: _vector(b, ends[1:])})
    b.Finish(_table(b, {0: b.CreateString(name), 3: _vector(b, [graph])}), SIGNATURE)
    return bytes(b.Output())


def with_labels(model: bytes, class_names: Sequence[str]) -> bytes:
    """The model with an archive behind it, if there are class names."""
    if not class_names:
        return model
    content = io.BytesIO()
    content.write(model)
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(zipfile.ZipInfo(LABELS), "\n".join(name.replace("\n", " ") for name in class_names))
    return content.getvalue()


def _table(b: flatbuffers.Builder, offsets: Mapping[int, int], bytes_: Mapping[int, int] | None = None) -> int:
    """A table with offsets and single bytes by field number."""
    b.StartObject(9)
    for field, offset in offsets.items():
        b.PrependUOffsetTRelativeSlot(field, offset, 0)
    for field, value in (bytes_ or {}).items():
        b.PrependUint8Slot(field, value, 0)
    return b.EndObject()


def _vector(b: flatbuffers.Builder, tables: Sequence[int]) -> int:
    b.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        b.PrependUOffsetTRelative(table)
    return b.EndVector()

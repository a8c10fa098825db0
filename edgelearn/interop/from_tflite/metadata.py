"""TFLite metadata: how inputs are made, and the names of classes in associated files.

The model has an entry "TFLITE_METADATA", a flatbuffer of its own; associated files are a zip archive at the file's end.
Schema: https://github.com/tensorflow/tflite-support/blob/master/tensorflow_lite_support/metadata/metadata_schema.fbs
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelearn.errors import FormatError

from .flatbuffer import Buffer, Table

NAME, SIGNATURE = "TFLITE_METADATA", b"M001"
NORMALIZATION = 1  # of the union ProcessUnitOptions
LABELS = (2, 3)  # TENSOR_AXIS_LABELS, TENSOR_VALUE_LABELS
LABEL_BYTES = 1 << 20


@dataclass(frozen=True)
class Metadata:
    """Metadata of the inputs and outputs of a TFLite file.

    Arguments:
    - `preprocessing`: {"mean": […], "std": […]}: the input is (pixel - mean) / std, channel by channel (default empty).
    - `class_names`: names of the outputs, in their order (default none).
    - `texts`: name, description, version, author and licence, where given (default empty).
    """

    preprocessing: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)


def read(file: Buffer, model: Table, buffers: list[Table], path: Path) -> Metadata:
    """Read the metadata of a model, empty if it has none. Raises FormatError naming the file."""
    entries = {entry.text(0): entry.number(1, "I") for entry in model.tables(6, "metadata")}
    index = entries.get(NAME)
    if index is None or index >= len(buffers):
        return Metadata()
    data = buffers[index].array(0, "u1").tobytes()
    if data[4:8] != SIGNATURE:
        return Metadata()
    record = Buffer(data, f"{path} (metadata)").root()
    texts = {
        name: text
        for number, name in enumerate(("name", "description", "version", "", "author", "license"))
        if name and (text := record.text(number))
    }
    graphs = record.tables(3, "sub-graph")
    if not graphs:
        return Metadata(texts=texts)
    inputs, outputs = graphs[0].tables(2, "input"), graphs[0].tables(3, "output")
    labels = [
        associated.text(0)
        for output in outputs
        for associated in output.tables(6, "associated file")
        if associated.number(2, "b") in LABELS
    ]
    return Metadata(_normalization(inputs), _class_names(file, labels[0], path) if labels else (), texts)


def _normalization(inputs: list[Table]) -> dict[str, Any]:
    for unit in inputs[0].tables(4, "process unit") if inputs else []:
        options = unit.table(1, "normalization")
        if options and unit.number(0, "B") == NORMALIZATION:
            mean, std = options.array(0, "<f4"), options.array(1, "<f4")
            if 0 < mean.size == std.size <= 4096 and std.all():
                return {"mean": mean.tolist(), "std": std.tolist()}
    return {}


def _class_names(file: Buffer, name: str, path: Path) -> tuple[str, ...]:
    """The lines of an associated file."""
    try:
        with zipfile.ZipFile(io.BytesIO(file.data)) as archive:
            info = archive.getinfo(name)
            if info.file_size > LABEL_BYTES or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"it says that it has {info.file_size:,} bytes, more than {LABEL_BYTES:,}")
            with archive.open(info) as member:
                text = member.read(LABEL_BYTES).decode("utf-8")
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise FormatError(
            f"{path}: the class names in '{name:.200}' can't be read ({error!s:.200}). Fetch the file again."
        ) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())

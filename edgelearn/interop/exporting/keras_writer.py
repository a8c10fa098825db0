"""Write Keras's `.keras` files, which hold the whole model, and `.weights.h5`. They need Keras with TensorFlow."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path

from edgelearn import atomic
from edgelearn.interop.model_file import ModelFile
from edgelearn.interop.to_keras import to_keras

WEIGHTS = ".weights.h5"  # end of the name of a file of weights alone
METADATA = "edgelearn.json"  # an entry of the archive; Keras ignores it


def write(path: str | Path, file: ModelFile) -> None:
    """Write the model; class names and preprocessing are the archive's entry "edgelearn.json".

    Raises FormatError for an op without a counterpart, RunError if the file can't be written.
    """
    model = to_keras(file.network, file.weights, "batch")
    if Path(path).name.endswith(WEIGHTS):
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / f"model{WEIGHTS}"
            model.save_weights(own)
            atomic.write_bytes(path, own.read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "model.keras"
        model.save(own)
        content = io.BytesIO(own.read_bytes())
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr(METADATA, atomic.to_json({name: json.loads(text) for name, text in file.texts().items()}))
    atomic.write_bytes(path, content.getvalue())

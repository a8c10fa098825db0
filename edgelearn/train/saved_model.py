"""Models in files: edgelearn's own, and those of other frameworks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.interop import ModelFile, model_file, write_model

from .calibration import calibrate
from .status import TrainedModel


class SavedModel(TrainedModel):
    """A model that can be written to files."""

    @abstractmethod
    def to_file(self) -> ModelFile:
        """Return everything that `save` writes: graph, weights, state of training, preprocessing, class names and
        metadata."""

    def save(self, path: str | Path) -> None:
        """Write one file with the graph, the weights and the state of training, and with `preprocessing`, `class_names`
        and `metadata`, which are attributes of the model for JSON values. `edgelearn.load` reads it.

        Raises RunError if it can't be written; the old file is then kept.
        """
        model_file.write(path, self.to_file())

    def export(self, path: str | Path, calibration: np.ndarray | None = None, **options: Any) -> None:
        """Write the model in the format of another framework, with `preprocessing` and `class_names` in its metadata.

        >>> model.export("flowers.tflite")
        >>> model.export("flowers.onnx", int8=True)
        >>> model.export("flowers_int8.tflite", int8=True, calibration=x[:100])

        Arguments:
        - `path`: its suffix names the format: .tflite, .onnx, .keras, .weights.h5, .safetensors, .pt, .qfp32 or .qfp16.
        - `calibration`: examples, for `int8`: activations get the range of their values here (default None: the range
          that a training with a Precision left).
        - `options`: of the format. `int8=True` (TFLite, ONNX) writes integers; inputs and outputs stay
          float32.

        Raises FormatError for an unknown suffix or option, an op that the format doesn't have, missing ranges or a
        missing package; DataError for no examples; RunError if the file can't be written.
        """
        file = self.to_file()
        if calibration is not None:
            if not options.get("int8"):
                raise FormatError(f"{path}: calibration is for integers: give int8=True, too.")
            file = replace(file, ranges=calibrate(self, calibration))
        write_model(path, file, **options)

"""Models in files: edgelearn's own, and those of other frameworks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, model_file, read_model, safetensors, write_model
from edgelearn.interop.writers import Written

from .calibration import calibrate
from .status import TrainedModel

OWN = ".safetensors"
WEIGHTS = (OWN, ".weights.h5", ".pt", ".pth")  # ends of the names of files of weights alone


def check_own_suffix(path: str | Path) -> None:
    """Raises FormatError for a file's name under which `save` would write something else than it says."""
    if not _ends(path, (OWN,)):
        raise FormatError(
            f"{path}: save writes edgelearn's own format, with the state of training, under names that end in {OWN}: "
            f"'{Path(path).stem or 'model'}{OWN}'. For other frameworks there is model.export('model.onnx'), with the "
            f"suffix of .onnx, .tflite, .keras and others."
        )


def check_weights_suffix(path: str | Path) -> None:
    """Raises FormatError for a file's name that isn't one of weights alone."""
    if not _ends(path, WEIGHTS):
        raise FormatError(f"{path}: names of files of weights alone end in {', '.join(WEIGHTS)}.")


def _ends(path: str | Path, suffixes: tuple[str, ...]) -> bool:
    return Path(path).name.lower().endswith(suffixes)


class SavedModel(TrainedModel):
    """A model that can be written to files."""

    network: Network

    @abstractmethod
    def to_file(self) -> ModelFile:
        """Return everything that `save` writes: graph, weights, state of training, preprocessing, class names and
        metadata."""

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the graph, the weights and the state of training, and with `preprocessing`,
        `class_names` and `metadata`, which are attributes of the model for JSON values. `edgelearn.load` reads it.

        Raises FormatError for a name that doesn't end in .safetensors, RunError if the file can't be written; the old
        file is then kept.
        """
        check_own_suffix(path)
        model_file.write(path, self.to_file())

    def save_weights(self, path: str | Path) -> None:
        """Write the weights alone, for `load_weights` of a model of the same network: .safetensors, under the names of
        `weights`; or, as `export` writes them, .weights.h5, .pt or .pth.

        Raises FormatError for another name, RunError if the file can't be written; the old file is then kept.
        """
        check_weights_suffix(path)
        if _ends(path, (OWN,)):
            atomic.write_bytes(path, safetensors.to_bytes(self.weights))
        else:
            write_model(path, self.to_file())

    def load_weights(
        self, path: str | Path, skip: tuple[str, ...] = (), names: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        """Assign the weights that a file holds. Arguments and errors as of `edgelearn.load`; layers in `skip` keep the
        weights that they have."""
        file = read_model(path, self.network, tuple(skip), names=names)
        self.weights = {**self.weights, **file.weights}

    def export(self, path: str | Path, calibration: Any = None, **options: Any) -> Written:
        """Write the model in the format of another framework, with `preprocessing` and `class_names` in its metadata.
        Return what was written: bytes by type, and the layers that stay float32.

        >>> model.export("flowers.tflite")
        >>> model.export("flowers.onnx", int8=True)
        >>> model.export("flowers_int8.tflite", int8=True, calibration=x[:100])
        >>> model.export("flowers_micro.tflite", full_integer=True, calibration=x[:100])

        Arguments:
        - `path`: its suffix names the format: .tflite, .onnx, .keras, .weights.h5, .safetensors, .pt, .qfp32 or .qfp16.
        - `calibration`: examples, for integers (a dictionary by input if there are several): activations get the range
          of their values here (default None: the range that a training with a Precision left).
        - `options`: of the format. `int8=True` (TFLite, ONNX) writes integers; inputs and outputs stay
          float32. `full_integer=True` (TFLite) writes integers alone, int8 inputs and outputs among them.
          `float16=True` (TFLite, ONNX) stores weights in float16.

        Raises FormatError for an unknown suffix or option, an op that the format doesn't have, missing ranges, a
        missing package, or layers that can't be computed with integers alone; DataError for no examples; RunError if
        the file can't be written.
        """
        file = self.to_file()
        if calibration is not None:
            if not (options.get("int8") or options.get("full_integer")):
                raise FormatError(f"{path}: calibration is for integers: give int8=True or full_integer=True, too.")
            file = replace(file, ranges=calibrate(self, calibration))
        return write_model(path, file, **options)

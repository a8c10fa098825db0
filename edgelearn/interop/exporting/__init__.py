"""The formats that models are written in, a file each. Packages of other frameworks are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from edgelearn.interop import model_file
from edgelearn.interop.model_file import ModelFile
from edgelearn.interop.writers import Writer, Written, register_writer

from . import qfp
from .graph import InferenceGraph, Operation, Quantization, Value
from .inference import inference_graph

__all__ = ["InferenceGraph", "Operation", "Quantization", "Value", "inference_graph", "qfp"]


def _later(module: str):
    """`write` of a module whose package may be missing."""

    def write(path: Path, file: ModelFile, **options: Any) -> Written | None:
        return import_module(f"{__package__}.{module}").write(path, file, **options)

    return write


for _writer in (
    Writer("edgelearn model", (".safetensors",), model_file.write),
    Writer("TFLite", (".tflite",), _later("tflite_writer"), ("int8", "float16", "full_integer")),
    Writer("ONNX", (".onnx",), _later("onnx_writer"), ("int8", "float16")),
    Writer("Keras", (".keras",), _later("keras_writer")),
    Writer("Keras weights", (".weights.h5",), _later("keras_writer")),
    Writer("PyTorch state dict", (".pt", ".pth"), _later("torch_writer")),
    Writer("QFP32", (".qfp32",), qfp.write_qfp32),
    Writer("QFP16", (".qfp16",), qfp.write_qfp16),
):
    register_writer(_writer)

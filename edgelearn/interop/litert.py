"""LiteRT in a process of its own: what a TFLite file computes, to compare an import with.

LiteRT may end its process on a damaged file, so the process has limits of time and memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgelearn import child
from edgelearn.errors import FormatError

START = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
SECONDS, SECONDS_PER_MB = 20.0, 2.0  # of a processor; the second for a megabyte of the file
MEMORY, EXPANSION = 1 << 29, 8  # bytes, and times the size of the file


def run(path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what LiteRT computes: of each output float32 values, (n, values of an example).

    Arguments:
    - `path`: the file.
    - `inputs`: of each input float32 values, (n, ...), which are quantized as the file asks for.

    Raises FormatError if LiteRT isn't installed, or can't run the file within the limits.
    """
    if find_spec("ai_edge_litert") is None:
        raise FormatError("LiteRT isn't installed: pip install ai-edge-litert.")
    size = path.stat().st_size
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.npz", Path(folder) / "made.npz"
        np.savez(given, *inputs)
        failure = child.run(
            "-c", START, path.resolve(), given, made, environment={"CUDA_VISIBLE_DEVICES": "-1"},
            computing=SECONDS + SECONDS_PER_MB * size / 1e6, memory=max(MEMORY, EXPANSION * size),
        )  # fmt: skip
        if failure or not made.exists():
            raise FormatError(f"LiteRT can't run {path} ({failure or 'it gave no outputs':.200}).")
        with np.load(made) as arrays:
            return [arrays[name] for name in arrays.files]


def main(path: str, given: str, made: str) -> None:
    """Run the file `path` on each example of the archive `given`, and write the archive `made`."""
    from ai_edge_litert.interpreter import Interpreter

    with np.load(given) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    runner = Interpreter(path)
    runner.allocate_tensors()
    found: list[list[np.ndarray]] = [[] for _ in runner.get_output_details()]
    first = runner.get_input_details()[0]["shape"]
    batch = first[0] if len(first) == inputs[0].ndim else 1
    for n in range(len(inputs[0])):
        for place, x in zip(runner.get_input_details(), inputs, strict=True):
            example, (scale, zero) = np.resize(x[n], place["shape"]), place["quantization"]  # a batch is filled up
            if scale:
                limits = np.iinfo(place["dtype"])
                example = np.clip(np.rint(example / scale) + zero, limits.min, limits.max)
            runner.set_tensor(place["index"], example.astype(place["dtype"]))
        runner.invoke()
        for outputs, place in zip(found, runner.get_output_details(), strict=True):
            y, (scale, zero) = runner.get_tensor(place["index"]), place["quantization"]
            y = (y.astype(np.float32) - zero) * np.float32(scale) if scale else y.astype(np.float32)
            outputs.append(y.reshape(batch, -1)[:1])
    np.savez(made, *(np.concatenate(outputs) for outputs in found))

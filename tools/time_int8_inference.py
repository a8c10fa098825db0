"""Time inference in float32 and int8 here, in ONNX Runtime and in LiteRT, in turn in one process:

    python tools/time_int8_inference.py [--rounds 9] [NAME …]

A network of edgelearn.models with random weights learns ranges from a few training steps in int8, and predicts one
picture at a time with them. Its exports, int8 by calibration, are what the other runtimes run. Each contender has all
cores, and ONNX Runtime's idle threads don't spin. Printed are median milliseconds of a call, float32 and int8, and
their ratio with the middle half of the rounds. Needs onnxruntime and ai-edge-litert.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgelearn as el
from edgelearn import models
from edgelearn.experiments.precision_claims import VARIANTS
from edgelearn.lab.measure import RoundsConfig, measure_in_turn, sample, usable_cores

NAMES = ("resnet18", "mobilenet_v1", "mobilenet_v2")
STEPS, EXAMPLES, CALLS = 3, 8, 5  # of the training, that give the ranges, of a turn


def predictor(network: el.Network, x: np.ndarray, variant: str) -> tuple[el.Model, Callable[[], object]]:
    """A model after some training steps, and a call of it."""
    model = el.Model(network, seed=0)
    model.compile(el.SGD(1e-4), precision=VARIANTS[variant].precision, batchnorm="batch")
    for _ in range(STEPS):
        model.train_on_batch(x, np.arange(len(x)) % network.output.shape[-1])
    return model, lambda: model.predict_on_batch(x[:1])


def onnx_runtime(path: Path, x: np.ndarray) -> Callable[[], object]:
    """A call of ONNX Runtime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = len(usable_cores()), 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda: session.run(None, {given.name: x[:1]})


def litert(path: Path, x: np.ndarray) -> Callable[[], object]:
    """A call of LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    runner: Any = Interpreter(str(path), num_threads=len(usable_cores()))
    runner.allocate_tensors()
    given, made = runner.get_input_details()[0]["index"], runner.get_output_details()[0]["index"]

    def call() -> object:
        runner.set_tensor(given, x[:1])
        runner.invoke()
        return runner.get_tensor(made)

    return call


def compare(name: str, rounds: int) -> None:
    """Print the rows of a network, in Markdown."""
    network = getattr(models, name)()
    x = np.random.default_rng(0).standard_normal((EXAMPLES, *network.input_shape)).astype(np.float32)
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    model, calls["edgelearn", "fp32"] = predictor(network, x, "fp32")
    _, calls["edgelearn", "int8"] = predictor(network, x, "integers, in-hindsight")
    with tempfile.TemporaryDirectory() as folder:
        for runtime, suffix, run in (("ONNX Runtime", ".onnx", onnx_runtime), ("LiteRT", ".tflite", litert)):
            for kind, options in {"fp32": {}, "int8": {"calibration": x, "int8": True}}.items():
                path = Path(folder) / f"{kind}{suffix}"
                model.export(path, **options)
                calls[runtime, kind] = run(path, x)
        samplers = {key: partial(sample, call, steps=CALLS) for key, call in calls.items()}
        blocks = measure_in_turn(samplers, usable_cores(), RoundsConfig(rounds, 0.0, CALLS))
    times = {key: np.array([block.seconds for block in found]) for key, found in blocks.items()}
    for runtime in dict.fromkeys(runtime for runtime, _ in calls):
        floats, integers = times[runtime, "fp32"], times[runtime, "int8"]
        low, ratio, high = np.quantile(integers / floats, (0.25, 0.5, 0.75))
        print(f"| `{name}` | {runtime} | {1e3 * np.median(floats):.1f} | {1e3 * np.median(integers):.1f} | "
              f"{ratio:.2f} ({low:.2f} – {high:.2f}) |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=NAMES, metavar="NAME", help=f"networks (default: {' '.join(NAMES)})"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (default: 9)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    for name in options.names:
        compare(name, options.rounds)


if __name__ == "__main__":
    main()

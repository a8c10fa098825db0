"""Accuracy and size of exported files on photographs: float32, float16, int8 by calibration, and integers alone.

    python tools/calibrated_int8.py [--data FOLDER] [--examples 100] [NAME …]

The folder has tf_flowers and weights/, as EDGELEARN_DATA. A new last layer is trained on the features of the training
pictures. The network is exported to TFLite and ONNX, int8 with ranges from some of the training pictures; each file
classifies the test pictures. Needs ai-edge-litert and onnxruntime. Printed are each file's size in bytes and the number
of test pictures that it classifies right.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import edgelearn as el
from edgelearn import models
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.ops import Dense

NETWORKS = {
    "mobilenet_v1_0.25": ("mobilenet_2_5_224_tf.h5", models.mobilenet_v1, 0.25),
    "mobilenet_v1": ("mobilenet_1_0_224_tf.h5", models.mobilenet_v1, 1.0),
    "mobilenet_v2": ("mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", models.mobilenet_v2, 1.0),
}
FILES = {
    "float32.tflite": {}, "float16.tflite": {"float16": True}, "int8.tflite": {"int8": True},
    "full_integer.tflite": {"full_integer": True}, "float32.onnx": {}, "float16.onnx": {"float16": True},
    "int8.onnx": {"int8": True},
}  # fmt: skip
SIZE, BATCH = 224, 64


def pictures(dataset: ImageDataset, indices: Sequence[int]) -> np.ndarray:
    """Pictures as the networks want them."""
    return normalize(load_images(dataset, indices, SIZE))


def fine_tuned(name: str, dataset: ImageDataset, train: np.ndarray, folder: Path) -> el.Model:
    """The network with a last layer that was trained on the features of the pictures `train`."""
    weights, make, alpha = NETWORKS[name]
    classes = len(dataset.class_names)
    network = make((SIZE, SIZE, 3), alpha, classes, False)
    last_layer = network.output.name
    whole = el.load(folder / "weights" / weights, network, skip=(last_layer,))
    features = network.copy()
    features.outputs = features.nodes[last_layer].inputs
    trunk = el.Model(features, whole.weights)
    parts = [trunk.predict(pictures(dataset, train[n : n + BATCH].tolist())) for n in range(0, len(train), BATCH)]
    found = np.concatenate(parts).reshape(len(train), -1)
    head = el.Network("head", found.shape[1:])
    head.add(last_layer, Dense(classes))
    last = el.Model(head, seed=0).compile(el.SGD(0.05, momentum=0.9))
    last.fit(found, dataset.labels[train], batch_size=100, epochs=20)
    whole.weights = {
        key: last.weights.get(key, array.reshape(-1)).reshape(array.shape) for key, array in whole.weights.items()
    }
    return whole


def classifier(path: Path) -> Callable[[np.ndarray], int]:
    """A function of a picture (1, height, width, 3) that runs a file and gives the class."""
    if path.suffix == ".onnx":
        from onnxruntime import InferenceSession

        session = InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda x: int(session.run(None, {"input": x})[0].argmax())
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path))
    given, made = runner.get_input_details()[0], runner.get_output_details()[0]
    runner.allocate_tensors()

    def classify(x: np.ndarray) -> int:
        if given["dtype"] == np.int8:
            scale, zero = given["quantization"]
            x = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)
        runner.set_tensor(given["index"], x)
        runner.invoke()
        return int(runner.get_tensor(made["index"]).argmax())

    return classify


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), metavar="NAME", help="networks (default: all)")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGELEARN_DATA"), help="the folder")
    parser.add_argument("--examples", type=int, default=100, help="pictures that give the ranges (default: 100)")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the folder: --data FOLDER, or the environment variable EDGELEARN_DATA")
    dataset = load_flowers(data=options.data, download=False)
    train, test = stratified_split(dataset.labels)
    examples = pictures(dataset, np.random.default_rng(0).choice(train, options.examples, replace=False).tolist())
    for name in options.names:
        model = fine_tuned(name, dataset, train, Path(options.data))
        with tempfile.TemporaryDirectory() as folder:
            classifiers = {}
            for file, types in FILES.items():
                path = Path(folder) / file
                given = examples if {"int8", "full_integer"} & set(types) else None
                size = model.export(path, given, **types).bytes
                classifiers[file, size] = classifier(path)
            counts = dict.fromkeys(classifiers, 0)
            for index in test.tolist():
                x = pictures(dataset, [index])
                for key, classify in classifiers.items():
                    counts[key] += classify(x) == dataset.labels[index]
        for (file, size), count in counts.items():
            print(f"{name} {file}: {size:,} bytes, {count} of {len(test)} right", flush=True)


if __name__ == "__main__":
    main()

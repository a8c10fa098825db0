"""Accuracy of int8 by calibration on photographs, both files run by LiteRT.

    python tools/calibrated_int8.py [--data FOLDER] [--examples 100] [NAME …]

The folder has tf_flowers and weights/, as EDGELEARN_DATA. A new last layer is trained on the features of the training
pictures. The network is exported to TFLite in float32, and in int8 with ranges from some of the training pictures; each
file classifies the test pictures. Needs ai-edge-litert.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import edgelearn as el
from edgelearn import models
from edgelearn.data.dataset import ImageDataset
from edgelearn.data.flowers import load_flowers
from edgelearn.data.loading import load_images
from edgelearn.data.preprocess import normalize
from edgelearn.data.split import stratified_split
from edgelearn.ops import Dense

NETWORKS = {
    "mobilenet_v1_0.25": ("mobilenet_2_5_224_tf.h5", models.mobilenet_v1, 0.25),
    "mobilenet_v1": ("mobilenet_1_0_224_tf.h5", models.mobilenet_v1, 1.0),
    "mobilenet_v2": ("mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", models.mobilenet_v2, 1.0),
}
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


def correct(path: Path, dataset: ImageDataset, test: np.ndarray) -> int:
    """Number of the pictures `test` that LiteRT classifies right."""
    from ai_edge_litert.interpreter import Interpreter

    runner, count = Interpreter(str(path)), 0
    given, made = runner.get_input_details()[0]["index"], runner.get_output_details()[0]["index"]
    runner.allocate_tensors()
    for index in test.tolist():
        runner.set_tensor(given, pictures(dataset, [index]))
        runner.invoke()
        count += int(runner.get_tensor(made).argmax() == dataset.labels[index])
    return count


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
            exact, integers = Path(folder) / "float32.tflite", Path(folder) / "int8.tflite"
            model.export(exact)
            model.export(integers, examples, int8=True)
            print(name, len(test), *(correct(path, dataset, test) for path in (exact, integers)), flush=True)


if __name__ == "__main__":
    main()

"""Accuracy and size of exported files on photographs: float32, float16, int8 by calibration, and integers alone.

A new last layer is trained on the features of the training pictures of tf_flowers. The network is exported to TFLite
and ONNX, int8 with ranges from some of the training pictures; each file classifies the test pictures, by the runtime
that it is for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgelearn import models
from edgelearn.data.draws import stratified_split
from edgelearn.data.flowers import load_flowers
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.data.tfds import data_folder
from edgelearn.errors import DataError, RunError
from edgelearn.graph import Network
from edgelearn.ops import SGD, Dense
from edgelearn.tables import Table
from edgelearn.train import Model
from edgelearn.train.loading import load

from .experiment import Log, silent

NETWORKS = {
    "mobilenet_v1_0.25": ("mobilenet_2_5_224_tf.h5", models.mobilenet_v1, 0.25),
    "mobilenet_v1": ("mobilenet_1_0_224_tf.h5", models.mobilenet_v1, 1.0),
    "mobilenet_v2": ("mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", models.mobilenet_v2, 1.0),
}
FILES: dict[str, dict[str, bool]] = {
    "float32.tflite": {}, "float16.tflite": {"float16": True}, "int8.tflite": {"int8": True},
    "full_integer.tflite": {"full_integer": True}, "float32.onnx": {}, "float16.onnx": {"float16": True},
    "int8.onnx": {"int8": True},
}  # fmt: skip
SIZE, BATCH = 224, 64


def pictures(dataset: ImageDataset, indices: Sequence[int]) -> np.ndarray:
    """Pictures as the networks want them."""
    return normalize(load_images(dataset, indices, SIZE))


def fine_tuned(name: str, dataset: ImageDataset, train: np.ndarray, folder: Path) -> Model:
    """The network with a last layer that was trained on the features of the pictures `train`."""
    weights, make, alpha = NETWORKS[name]
    classes = len(dataset.class_names)
    network = make((SIZE, SIZE, 3), alpha, classes, False)
    last_layer = network.output.name
    whole = load(folder / "weights" / weights, network, skip=(last_layer,))
    features = network.copy()
    features.outputs = features.nodes[last_layer].inputs
    trunk = Model(features, whole.weights)
    parts = [trunk.predict(pictures(dataset, train[n : n + BATCH].tolist())) for n in range(0, len(train), BATCH)]
    found = np.concatenate(parts).reshape(len(train), -1)
    head = Network("head", found.shape[1:])
    head.add(last_layer, Dense(classes))
    last = Model(head, seed=0).compile(SGD(0.05, momentum=0.9))
    last.fit(found, dataset.labels[train], batch_size=100, epochs=20)
    whole.weights = {
        key: last.weights.get(key, array.reshape(-1)).reshape(array.shape) for key, array in whole.weights.items()
    }
    return whole


def classifier(path: Path) -> Callable[[np.ndarray], int]:
    """A function of a picture (1, height, width, 3) that runs a file and gives the class."""
    if path.suffix == ".onnx":
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", "1")  # or int8 saturates on CPUs without VNNI
        session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
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


@dataclass(frozen=True)
class ExportedFile:
    """A file on the test pictures.

    Arguments:
    - `network`, `file`: names.
    - `bytes`: its size.
    - `right`, `total`: test pictures that it classifies right, and all of them.
    """

    network: str
    file: str
    bytes: int
    right: int
    total: int


def compare(
    names: Sequence[str], data: str | None = None, examples: int = 100, log: Log = silent
) -> list[ExportedFile]:
    """Export each network and classify the test pictures.

    Arguments:
    - `names`: names in NETWORKS.
    - `data`: folder with tf_flowers and weights/ (default: EDGELEARN_DATA).
    - `examples`: pictures that give the ranges.
    - `log`: gets the name of each network before it.

    Raises RunError without ONNX Runtime and LiteRT, DataError without the data.
    """
    for module, package in (("onnxruntime", "onnxruntime"), ("ai_edge_litert", "ai-edge-litert")):
        if find_spec(module) is None:
            raise RunError(f"Exported files run in ONNX Runtime and LiteRT: pip install {package}.")
    folder = data_folder(data)
    if not folder:
        raise DataError("The photographs and weights are missing: name their folder by --data, or set EDGELEARN_DATA.")
    dataset = load_flowers(data=folder, download=False)
    train, test = stratified_split(dataset.labels)
    chosen = pictures(dataset, np.random.default_rng(0).choice(train, examples, replace=False).tolist())
    found = []
    for name in names:
        log(name)
        model = fine_tuned(name, dataset, train, Path(folder))
        with tempfile.TemporaryDirectory() as files:
            sizes, classifiers = {}, {}
            for file, types in FILES.items():
                path = Path(files) / file
                given = chosen if {"int8", "full_integer"} & set(types) else None
                sizes[file] = model.export(path, given, **types).bytes
                classifiers[file] = classifier(path)
            counts = dict.fromkeys(FILES, 0)
            for index in test.tolist():
                x = pictures(dataset, [index])
                for file, classify in classifiers.items():
                    counts[file] += int(classify(x) == dataset.labels[index])
        found += [ExportedFile(name, file, sizes[file], counts[file], len(test)) for file in FILES]
    return found


def table(files: Sequence[ExportedFile]) -> Table:
    """A row for each file."""
    rows = [(each.network, each.file, f"{each.bytes:,}", f"{each.right} of {each.total}") for each in files]
    return Table(("network", "file", "bytes", "right"), rows)

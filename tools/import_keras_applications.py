"""Import every network of keras.applications up to 30 million parameters, with random weights, and compare.

    python tools/import_keras_applications.py [NAME ...] [--format keras|h5] [--markdown FILE]

For each network: Keras (in a process of its own) draws weights, saves the model and computes predictions and gradients.
edgelearn imports the file and computes the same with all layers trained. A row says how far they are apart, relative to
the largest value, or what is missing. Needs TensorFlow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import edgelearn as el
from edgelearn.errors import EdgelearnError
from edgelearn.interop import import_graph

# Networks by name, with the side of the smallest pictures that they take
NETWORKS = {
    "MobileNet": 32, "MobileNetV2": 32, "MobileNetV3Small": 32, "MobileNetV3Large": 32, "EfficientNetB0": 32,
    "EfficientNetB1": 32, "EfficientNetB2": 32, "EfficientNetB3": 32, "EfficientNetB4": 32, "EfficientNetV2B0": 32,
    "EfficientNetV2B1": 32, "EfficientNetV2B2": 32, "EfficientNetV2B3": 32, "EfficientNetV2S": 32, "DenseNet121": 32,
    "DenseNet169": 32, "DenseNet201": 32, "NASNetMobile": 32, "Xception": 71, "InceptionV3": 75, "ResNet50": 32,
    "ResNet50V2": 32, "ConvNeXtTiny": 32,
}  # fmt: skip
MOST_PARAMETERS = 30_000_000
CLASSES = 10

KERAS = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np, tensorflow as tf
name, side, classes, path, arrays = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=classes)
rng = np.random.default_rng(0)
for layer in model.layers:
    if hasattr(layer, "rate"):
        layer.rate = 0.0  # dropout is random
    for variable in layer.weights:
        role = variable.path.rsplit("/", 1)[-1]
        draw = {"gamma": (1, 0.1), "beta": (0, 0.1), "moving_mean": (0, 0.1), "bias": (0, 0.1)}.get(role)
        if role == "moving_variance":
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
        elif draw:
            variable.assign(rng.normal(*draw, variable.shape))
x = rng.uniform(0, 255, (2, side, side, 3)).astype(np.float32)
labels = np.array([1, 2])
norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
momentum = [layer.momentum for layer in norms]
for layer in norms:
    layer.momentum = 0.0
model(x, training=True)  # statistics of these pictures: activations stay about 1, as in a network that was trained
for layer, value in zip(norms, momentum):
    layer.momentum = value
    layer.moving_variance.assign_add(0.1 * np.ones(layer.moving_variance.shape))
with tf.GradientTape() as tape:
    y = model(x, training=False)
    loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, y))
gradients = tape.gradient(loss, model.trainable_variables)
model.save(path)
found = {v.path: g.numpy() for v, g in zip(model.trainable_variables, gradients) if g is not None}
np.savez(arrays, **{"gradient " + k.replace("/", "|"): v for k, v in found.items()}, x=x, y=y.numpy(), labels=labels,
         parameters=model.count_params())
"""


def measure(name: str, side: int, file_format: str, folder: Path) -> dict[str, object]:
    """The result for one network, as a row."""
    path, arrays = folder / f"{name}.{file_format}", folder / f"{name}.npz"
    command = [sys.executable, "-c", KERAS, name, str(side), str(CLASSES), str(path), str(arrays)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        return {"network": name, "parameters": 0, "input": "", "missing": f"Keras failed: {made.stderr[-300:]}"}
    kept = np.load(arrays)
    row: dict[str, object] = {"network": name, "parameters": int(kept["parameters"]), "input": f"{side} × {side}"}
    begin = time.perf_counter()
    try:
        translation = import_graph(path)
        row["seconds"] = time.perf_counter() - begin
        if translation.problems:
            kinds = sorted({f"{p.kind} ({p.reason})" for p in translation.problems})
            return {**row, "missing": "; ".join(kinds)}
        model = el.Model(translation.network, translation.weights)
        row["forward"] = _distance(model.predict(kept["x"], 2), kept["y"])
        model.compile(el.SGD(0.01), batchnorm="moving")
        gradients = model.gradients(kept["x"], kept["labels"])
    except EdgelearnError as error:
        return {**row, "missing": f"{type(error).__name__}: {str(error)[:300]}"}
    theirs = {key[9:].replace("|", "/"): kept[key] for key in kept.files if key.startswith("gradient ")}
    shared = [key for key in theirs if key in gradients and gradients[key].shape == theirs[key].shape]
    largest = max(float(np.abs(theirs[key]).max()) for key in shared)
    row["backward"] = max(float(np.abs(gradients[key] - theirs[key]).max()) for key in shared) / largest
    row["compared"] = f"{len(shared)} of {len(theirs)}"
    return row


def _distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def markdown(rows: list[dict[str, object]]) -> str:
    """The rows as a table of the manual."""
    lines = ["| network | parameters | input | forward | backward | missing |", "|---|---|---|---|---|---|"]
    for row in rows:
        numbers = [f"{row[key]:.1e}" if key in row else "" for key in ("forward", "backward")]
        lines.append(
            f"| {row['network']} | {row['parameters']:,} | {row['input']} | {numbers[0]} | {numbers[1]} | "
            f"{row.get('missing', '')} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help="networks (default: all)")
    parser.add_argument("--format", choices=("keras", "h5"), default="keras")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args()
    rows = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, NETWORKS[name], options.format, Path(folder)))
        print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
        if options.markdown:
            options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()

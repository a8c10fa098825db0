"""Import every network of keras.applications up to 30 million parameters, and compare with Keras in float64.

    python tools/import_keras_applications.py [NAME …] [--format keras|h5|tflite|onnx] [--rows FILE] [--markdown FILE]

For each network Keras, in a process of its own, draws weights, writes the model, and computes logits and gradients in
float64. edgelearn imports the file and computes the same with all layers trained. An error is the largest difference
by the largest value: of the logits, and of all gradients; beside them those of Keras in float32, which show how far
rounding alone leads. Files of TFLite and ONNX have BatchNorm folded into convolutions: there the gradients of biases
are compared, which are those of beta, each with the nearest of its size. `--rows FILE` keeps each row as a line of
JSON: run again, the command goes on after the last one, and the table has the formats of all rows.

Random weights must not amplify rounding: statistics of BatchNorm are those of 16 pictures, gamma is about 0.3, so that
residual branches are small as in a trained network, and logits have deviation 1. Needs TensorFlow; ONNX needs tf2onnx.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
CLASSES = 10
LABELS = np.array([1, 2])

KERAS = """
import sys
import keras, numpy as np, tensorflow as tf

name, side, classes, file_format, seed, path, arrays = sys.argv[1:]
side, classes, seed = int(side), int(classes), int(seed)
labels = np.array([1, 2])


def make():
    return getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None
    )


def evaluate(model, x):
    with tf.GradientTape() as tape:
        y = model(x, training=False)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, y, from_logits=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    return np.array(y), {v.path: np.array(g) for v, g in zip(model.trainable_variables, gradients)}


keras.utils.set_random_seed(seed)
model, rng = make(), np.random.default_rng(seed)
layers = [layer for layer in model._flatten_layers() if not layer._layers]
DRAW = {"gamma": (0.3, 0.03), "beta": (0, 0.03), "bias": (0, 0.1)}
for layer in layers:
    if isinstance(layer, keras.layers.Dropout) or hasattr(layer, "drop_path_rate"):
        layer.rate = layer.drop_path_rate = 0.0
    for variable in layer.weights:
        role = variable.path.rsplit("/", 1)[-1]
        if role in DRAW:
            variable.assign(rng.normal(*DRAW[role], variable.shape))
        elif role not in ("mean", "variance", "moving_mean", "moving_variance") and len(variable.shape) == 1:
            variable.assign(rng.uniform(0.1, 0.3, variable.shape))  # LayerScale
norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
momentum = [layer.momentum for layer in norms]
for layer in norms:
    layer.momentum = 0.0
prepares = any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in layers)
ends = (0, 255) if prepares else (-1, 1)
model(rng.uniform(*ends, (16, side, side, 3)).astype("float32"), training=True)
for layer, value in zip(norms, momentum):
    layer.momentum = value
    layer.moving_variance.assign_add(0.1 * np.mean(layer.moving_variance) * np.ones(layer.moving_variance.shape))
    if not layer.scale:  # as a gamma of 0.3
        layer.moving_variance.assign(10 * layer.moving_variance)
x = rng.uniform(*ends, (2, side, side, 3)).astype("float32")
deviation = np.std(model(x, training=False))
for variable in [layer for layer in layers if layer.weights][-1].weights:
    variable.assign(variable / deviation)

if file_format == "tflite":
    with open(path, "wb") as file:
        file.write(tf.lite.TFLiteConverter.from_keras_model(model).convert())
elif file_format == "onnx":
    model.export(path, format="onnx", verbose=False)
else:
    model.save(path)
y32, gradients32 = evaluate(model, x)
weights, parameters = model.get_weights(), model.count_params()
keras.backend.clear_session()
keras.backend.set_floatx("float64")
exact = make()
exact.set_weights(weights)
y, gradients = evaluate(exact, x.astype("float64"))
assert y.dtype == np.float64
named = {f"exact {key}".replace("/", "|"): value for key, value in gradients.items()}
named |= {f"float32 {key}".replace("/", "|"): value for key, value in gradients32.items()}
np.savez(arrays, **named, x=x, y=y, y32=y32, parameters=parameters)
"""

Arrays = dict[str, np.ndarray]
QUIET = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}


def measure(name: str, side: int, file_format: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the result for one network, as a row."""
    path, arrays = folder / f"{name}.{file_format}", folder / f"{name}.npz"
    arguments = [name, str(side), str(CLASSES), file_format, str(seed), str(path), str(arrays)]
    made = subprocess.run([sys.executable, "-c", KERAS, *arguments], capture_output=True, text=True, env=QUIET)
    row: dict[str, Any] = {"network": name, "format": file_format, "seed": seed, "pixels": side}
    if made.returncode:
        return {**row, "missing": f"Keras failed: {made.stderr[-300:]}"}
    kept = np.load(arrays)
    row["parameters"] = int(kept["parameters"])
    begin = time.perf_counter()
    try:
        translation = import_graph(path)
        row["seconds"] = round(time.perf_counter() - begin, 2)
        if translation.problems:
            return {**row, "missing": "; ".join(sorted({f"{p.kind} ({p.reason})" for p in translation.problems}))}
        model = el.Model(translation.network, translation.weights)
        row["forward"] = distance(model.predict(kept["x"], 2), kept["y"])
        row["forward of Keras"] = distance(kept["y32"], kept["y"])
        model.compile(el.SGD(0.01), batchnorm="moving")
        found = model.gradients(kept["x"], LABELS)
    except EdgelearnError as error:
        return {**row, "missing": f"{type(error).__name__}: {str(error)[:300]}"}
    exact, single = (
        {key[len(kind) :].replace("|", "/"): kept[key] for key in kept.files if key.startswith(kind)}
        for kind in ("exact ", "float32 ")
    )
    if file_format in ("tflite", "onnx"):
        exact = {key: array for key, array in exact.items() if key.rsplit("/", 1)[-1] in ("beta", "bias")}
    found = {name: match(name, array, found) for name, array in exact.items()}
    missing = [name for name, array in found.items() if array is None]
    if missing:
        return {**row, "missing": f"gradients of {missing[:3]}"}
    row |= {"backward": worst(found, exact), "backward of Keras": worst(single, exact), "compared": len(exact)}
    return row


def match(name: str, exact: np.ndarray, found: Arrays) -> np.ndarray | None:
    """Return the gradient of this name; if there is none, the nearest one of its size."""
    if name in found and found[name].size == exact.size:
        return found[name].reshape(exact.shape)
    same = [array.reshape(exact.shape) for array in found.values() if array.size == exact.size]
    return min(same, key=lambda array: float(np.abs(array - exact).max()), default=None)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def worst(found: Arrays, exact: Arrays) -> float:
    """Return the largest difference of all gradients, by the largest value."""
    largest = max(float(np.abs(array).max()) for array in exact.values())
    return max(float(np.abs(found[name] - array).max()) for name, array in exact.items()) / largest


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table of the manual, a network a line: for each format the errors of edgelearn, and in
    brackets those of Keras in float32."""
    formats = list(dict.fromkeys(row["format"] for row in rows))
    heads = "".join(f" {name}: forward | backward |" for name in formats)
    lines = [f"| network | parameters | pixels |{heads}", "|---|---|---|" + "---|---|" * len(formats)]
    for name in NETWORKS:
        own = {row["format"]: row for row in rows if row["network"] == name}
        if own:
            parameters = max(row.get("parameters", 0) for row in own.values()) / 1e6
            cells = " | ".join(_errors(own.get(kind, {})) for kind in formats)
            lines.append(f"| {name} | {parameters:.1f} M | {NETWORKS[name]} | {cells} |")
    return "\n".join(lines) + "\n"


def _errors(row: dict[str, Any]) -> str:
    """The two cells of a row: its errors, or what is missing."""
    if "missing" in row or not row:
        return f"{row.get('missing', 'not measured')} | "
    return " | ".join(f"{row[way]:.0e} ({row[f'{way} of Keras']:.0e})" for way in ("forward", "backward"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help="networks (default: all)", metavar="NAME")
    parser.add_argument("--format", choices=("keras", "h5", "tflite", "onnx"), default="keras")
    parser.add_argument("--seed", type=int, default=0, help="of weights and pictures")
    parser.add_argument("--rows", type=Path, help="add the rows to this file; those that it has are not measured again")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    done = {(row["network"], row["format"], row["seed"]) for row in rows}
    for name in options.names:
        if (name, options.format, options.seed) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, NETWORKS[name], options.format, options.seed, Path(folder)))
        print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()

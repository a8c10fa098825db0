"""Compare published models with the runtimes that they are for, and their gradients with float64.

    python tools/import_published.py [--data FOLDER] [NAME …]

The folder has models/ and weights/: vww_96.h5, vww_96_float.tflite and DS_CNN_S.pb, MobileNet V1 and V2 of
keras.applications, BC-ResNet-1. An error is the largest difference by the largest value: of the outputs, against Keras,
LiteRT or TensorFlow; of all gradients with all layers trained, against Keras in float64. Where the format has no
gradients, Keras computes those of the imported network. Needs TensorFlow and ai-edge-litert.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import edgelearn as el
from edgelearn import models

PIXELS = 96
WEIGHTS = {
    "mobilenet_2_5_224_tf.h5": ("MobileNet", models.mobilenet_v1, 0.25),
    "mobilenet_1_0_224_tf.h5": ("MobileNet", models.mobilenet_v1, 1.0),
    "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5": ("MobileNetV2", models.mobilenet_v2, 1.0),
}
BCRESNET = "bcresnet1_speech_commands.npz"
NAMES = ("vww_96.h5", "vww_96_float.tflite", "DS_CNN_S.pb", *WEIGHTS, BCRESNET)
LAST = {"conv_preds": "dense"}  # where names of keras.applications differ
Arrays = dict[str, np.ndarray]


def load(name: str, data: Path) -> el.Model:
    """Return the model of a file."""
    if name in WEIGHTS:
        _, make, alpha = WEIGHTS[name]
        return el.load(data / "weights" / name, make((PIXELS, PIXELS, 3), alpha))
    if name == BCRESNET:
        return el.load(data / "weights" / name, models.bcresnet((40, 101, 1), dropout=0.0))
    return el.load(data / "models" / name, inputs=("Reshape_1",) if name.endswith(".pb") else ())


def measure(name: str, model: el.Model, folder: Path) -> None:
    """Write what the engine computes for two examples, and the model, whose betas are changed for the gradients:
    published networks have channels whose values lie at the corner of a ReLU, and rounding would choose the side."""
    model.network.unfreeze()
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2, *model.network.input_shape)).astype(np.float32)
    y = model.predict(x, 2)
    draw = {key: rng.uniform(-0.02, 0.02, array.shape) for key, array in model.weights.items() if key.endswith("beta")}
    model.weights = {**model.weights, **{key: model.weights[key] + np.float32(change) for key, change in draw.items()}}
    labels = y.argsort(-1)[:, -2]  # Keras cuts probabilities off at 1e-7: the second is above
    model.compile(el.SGD(0.01), batchnorm="moving")
    gradients = {key.replace("/", "|"): value for key, value in model.gradients(x, labels).items()}
    np.savez(folder / f"{name}.npz", x=x, y=y, labels=labels, **gradients)
    model.save(folder / f"{name}.safetensors")


def compare(name: str, data: Path, folder: Path) -> dict[str, float]:
    """Return the errors of what `measure` wrote. It needs a process of its own: it sets Keras to float64."""
    import keras
    import tensorflow as tf

    from edgelearn.interop.to_keras import keras_variables, to_keras

    keras.backend.set_floatx("float64")
    kept = np.load(folder / f"{name}.npz")
    x, labels = kept["x"], kept["labels"]
    found = {key.replace("|", "/"): kept[key] for key in kept.files if key not in ("x", "y", "labels")}
    ours = el.load(folder / f"{name}.safetensors")
    if name == "vww_96.h5":

        class Depthwise(keras.layers.DepthwiseConv2D):  # Keras 3 doesn't know an argument that Keras 2 wrote
            def __init__(self, groups: int = 1, **settings: Any) -> None:
                super().__init__(**settings)

        own_classes = {"DepthwiseConv2D": Depthwise, "Depthwise": Depthwise}
        model: Any = keras.models.load_model(data / "models" / name, own_classes, compile=False)
        weights, text = model.get_weights(), model.to_json().replace('"float32"', '"float64"')
        model = keras.models.model_from_json(text, own_classes)
        model.set_weights(weights)
        variables = {variable.path: variable for variable in model.trainable_variables}
    elif name in WEIGHTS:
        kind, _, alpha = WEIGHTS[name]
        application = getattr(keras.applications, kind)
        model = application(weights=data / "weights" / name, input_shape=x.shape[1:], alpha=alpha)
        variables = {variable.path: variable for variable in model.trainable_variables}
    else:
        network = ours.network.unfreeze()
        model = to_keras(network, {key: array.astype(np.float64) for key, array in load(name, data).weights.items()})
        variables = {key: value for key, value in keras_variables(model, network).items() if key in network.trainable}
    y = official(name, data, model, x)
    for key, variable in variables.items():
        variable.assign(ours.weights[_own(key)].reshape(variable.shape))
    with tf.GradientTape() as tape:
        predicted = model(x.astype(np.float64), training=False)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, predicted))
    exact = tape.gradient(loss, [variable.value for variable in variables.values()])
    largest, worst = max(float(np.abs(g).max()) for g in exact), 0.0
    for key, gradient in zip(variables, exact, strict=True):
        difference = np.abs(found.pop(_own(key)).reshape(gradient.shape) - gradient).max()
        worst = max(worst, float(difference) / largest)
    assert not found, list(found)
    return {
        "parameters": sum(array.size for array in ours.weights.values()),
        "forward": float(np.abs(kept["y"] - y).max() / np.abs(y).max()),
        "backward": worst,
        "compared": len(exact),
    }


def _own(name: str) -> str:
    """Return edgelearn's name of a variable."""
    layer, _, role = name.rpartition("/")
    return f"{LAST.get(layer, layer)}/{'kernel' if role == 'depthwise_kernel' else role}"


def _lite(data: Path, x: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(data / "models" / "vww_96_float.tflite"))
    runner.allocate_tensors()
    found = []
    for example in x:
        runner.set_tensor(runner.get_input_details()[0]["index"], example[None])
        runner.invoke()
        found.append(runner.get_tensor(runner.get_output_details()[0]["index"]).copy())
    return np.concatenate(found)


def _frozen(data: Path, x: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        definition = tf.compat.v1.GraphDef.FromString((data / "models" / "DS_CNN_S.pb").read_bytes())
        for node in [node for node in definition.node if node.op in ("DecodeWav", "AudioSpectrogram", "Mfcc")]:
            definition.node.remove(node)
        behind = [node for node in definition.node if node.name != "Reshape"]
        del definition.node[:]
        for node in behind:
            if node.name == "Reshape_1":
                node.Clear()
                node.name, node.op = "Reshape_1", "Placeholder"
                node.attr["dtype"].type = tf.float32.as_datatype_enum
            definition.node.append(node)
        (y,) = tf.import_graph_def(definition, name="", return_elements=["labels_softmax:0"])
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(y, {"Reshape_1:0": x})


def official(name: str, data: Path, model: Any, x: np.ndarray) -> np.ndarray:
    """Return what the file's own runtime computes; `model`: Keras's."""
    if name.endswith(".tflite"):
        return _lite(data, x)
    return _frozen(data, x) if name.endswith(".pb") else np.array(model(x.astype(np.float64), training=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME", help="files (default: all)")
    parser.add_argument("--data", type=Path, default=os.environ.get("EDGELEARN_DATA"), help="the folder")
    parser.add_argument("--compare", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data is None:
        parser.error("give the folder: --data FOLDER, or the environment variable EDGELEARN_DATA")
    if options.compare:
        for name in options.names:
            print(name, *(f"{key}={value:.3g}" for key, value in compare(name, options.data, options.compare).items()))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            measure(name, load(name, options.data), Path(folder))
        subprocess.run([sys.executable, __file__, *options.names, "--data", options.data, "--compare", folder],
                       check=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})  # fmt: skip


if __name__ == "__main__":
    main()

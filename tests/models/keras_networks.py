"""Run by test_against_keras.py in a process of its own, where TensorFlow may be imported.

    python keras_networks.py NETWORKS FOLDER TRAINED...

NETWORKS is JSON: options by network. Builds each network of MODELS in float64 with random weights. Writes weights,
images, labels, logits, and the gradients of the mean cross-entropy: with kept statistics into FOLDER/NAME/moving.npz,
with the batch's, and the moving statistics afterwards, of the networks TRAINED into batch.npz beside it. Only theirs
are gradients to compare. FOLDER/vgg16.json has the shapes of the weights of keras.applications.VGG16.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import keras_zoo
import numpy as np
import tensorflow as tf
from keras import layers
from keras.src.applications import efficientnet as efficientnet_module
from keras.src.applications import mobilenet_v3 as mobilenet_v3_module

IMAGES = 8
MARGIN = 3e-5  # float32 must not round any input of a rectifier across one of its corners
LEAD = 3e-6  # nor make the second largest value of a pooling window the largest
SEED = 3  # of Keras's initializers, and of everything here
rng = np.random.default_rng(SEED)


def mobilenet_v1(size, alpha, classes):
    return keras.applications.MobileNet(
        (size, size, 3), alpha=alpha, dropout=0.0, weights=None, classes=classes, classifier_activation=None
    )


def mobilenet_v2(size, alpha, classes):
    return keras.applications.MobileNetV2(
        (size, size, 3), alpha=alpha, weights=None, classes=classes, classifier_activation=None
    )


def mobilenet_v2_cifar(size, alpha, classes):
    """Keras's network with stride 1 in its first convolution and its first block of stride 2."""
    config = mobilenet_v2(size, alpha, classes).get_config()
    for layer in config["layers"]:
        settings = layer["config"]
        if layer["class_name"] == "BatchNormalization":
            settings["momentum"] = 0.9
        elif settings["name"] in ("Conv1", "block_1_depthwise"):
            settings |= {"strides": (1, 1), "padding": "same"}
        elif settings["name"] == "block_1_pad":
            settings["padding"] = (0, 0)
    return keras.Model.from_config(config)


def vgg16(size, alpha, classes, units):
    x = inputs = keras.Input((size, size, 3))
    for stage, (filters, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for number in range(1, count + 1):
            x = layers.Conv2D(int(filters * alpha), 3, padding="same", name=f"block{stage}_conv{number}")(x)
            x = layers.ReLU()(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    for name in ("fc1", "fc2"):
        x = layers.ReLU()(layers.Dense(units, name=name)(x))
    return keras.Model(inputs, layers.Dense(classes, name="predictions")(x))


def resnet18(size, alpha, classes, cifar=False):
    def convolution(x, name, filters, kernel, strides):
        x = layers.ZeroPadding2D(kernel // 2)(x)
        x = layers.Conv2D(filters, kernel, strides, use_bias=False, name=f"{name}_conv")(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(x)

    inputs = keras.Input((size, size, 3))
    x = layers.ReLU()(convolution(inputs, "conv1", int(64 * alpha), *((3, 1) if cifar else (7, 2))))
    if not cifar:  # what is padded with zeros comes out of a ReLU
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, filters in zip((2, 3, 4, 5), (64, 128, 256, 512), strict=True):
        for block, strides in ((1, 1 if stage == 2 else 2), (2, 1)):
            name, count = f"conv{stage}_block{block}", int(filters * alpha)
            same = stage == 2 or block == 2
            shortcut = x if same else convolution(x, f"{name}_0", count, 1, strides)
            y = layers.ReLU()(convolution(x, f"{name}_1", count, 3, strides))
            y = convolution(y, f"{name}_2", count, 3, 1)
            x = layers.ReLU()(layers.Add()([shortcut, y]))
    return keras.Model(inputs, layers.Dense(classes, name="predictions")(layers.GlobalAveragePooling2D()(x)))


def resnet18_cifar(size, alpha, classes):
    return resnet18(size, alpha, classes, cifar=True)


def mobilenet_v3(make, size, alpha, classes):
    """With its hard sigmoid as one layer."""
    mobilenet_v3_module.hard_sigmoid = lambda x: layers.Activation("hard_sigmoid")(x)
    return make(
        (size, size, 3), alpha=alpha, dropout_rate=0.0, weights=None, classes=classes, classifier_activation=None,
        include_preprocessing=False,
    )  # fmt: skip


def mobilenet_v3_small(size, alpha, classes):
    return mobilenet_v3(keras.applications.MobileNetV3Small, size, alpha, classes)


def mobilenet_v3_large(size, alpha, classes):
    return mobilenet_v3(keras.applications.MobileNetV3Large, size, alpha, classes)


def efficientnet_b0(size, alpha, classes):
    """Without preprocessing: its scale is 1, and it normalizes with mean 0 and variance 1."""
    model = efficientnet_module.EfficientNet(
        alpha, 1.0, size, 0.0, 0.0, input_shape=(size, size, 3), weights=None, classes=classes,
        classifier_activation=None,
    )  # fmt: skip
    model.layers[1].scale = 1.0
    return model


MODELS = {
    f.__name__: f
    for f in (
        efficientnet_b0, keras_zoo.alexnet, keras_zoo.alexnet_one_column, keras_zoo.efficientnet_lite0,
        keras_zoo.lenet5, keras_zoo.lenet_deepcl, keras_zoo.proxylessnas_mobile, keras_zoo.resnet8, keras_zoo.resnet34,
        keras_zoo.resnet50, keras_zoo.shufflenet_v2, keras_zoo.squeezenet, mobilenet_v1, mobilenet_v2,
        mobilenet_v2_cifar, mobilenet_v3_large, mobilenet_v3_small, resnet18, resnet18_cifar, vgg16,
    )
}  # fmt: skip
CORNERS = {"relu": (0.0, 6.0), "hard_swish": (-3.0, 3.0), "hard_sigmoid": (-3.0, 3.0)}  # where derivatives jump


def single(array):
    """Rounded to float32: both sides start from the same numbers."""
    return np.asarray(array, np.float32).astype(np.float64)


def begin(layer, x):
    """Random weights; statistics as training could have left them: near the input's own."""
    weights = layer.get_weights()
    if isinstance(layer, layers.BatchNormalization):
        channels = x.shape[-1]
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        weights = [
            rng.uniform(0.7, 1.8, channels),
            0.8 + 0.5 * rng.standard_normal(channels),
            mean + 0.2 * np.sqrt(variance) * rng.standard_normal(channels),
            variance * rng.uniform(0.5, 2.0, channels) + 1e-3,
        ]
    elif weights and not isinstance(layer, layers.Normalization):
        weights = [w + 0.02 * rng.standard_normal(w.shape) for w in weights]
    layer.set_weights([single(w) for w in weights])


def settle(layer, z, corners):
    """Move each channel's offset in `layer`, by as little as it takes for every value of z, which adds other things to
    it at most, to keep MARGIN from the corners, where an activation's derivative jumps: a flipped derivative is no
    error of rounding size, but 1e-2 of a layer's gradient. Returns z as it is then."""
    weights = layer.get_weights()
    offset = weights[1]  # beta or bias
    start, z = offset.copy(), z - offset
    for c in range(z.shape[-1]):
        while min(np.abs(z[..., c] + offset[c] - corner).min() for corner in corners) < MARGIN:
            offset[c] = single(start[c] + rng.uniform(-0.05, 0.05))
    layer.set_weights(weights)
    return z + offset


def function_of(layer):
    """The name of an activation."""
    return "relu" if isinstance(layer, layers.ReLU) else getattr(getattr(layer, "activation", None), "__name__", "")


def sources(layer):
    found = layer.input if isinstance(layer.input, list) else [layer.input]
    return [tensor._keras_history.operation for tensor in found]


def is_close_race(pooling, x):
    """True if two values above 0 of one window are less than LEAD apart. Those at 0 come out of a rectifier, where no
    gradient goes on."""
    windows = tf.image.extract_patches(
        x, (1, *pooling.pool_size, 1), (1, *pooling.strides, 1), (1, 1, 1, 1), pooling.padding.upper()
    )
    windows = np.sort(np.reshape(windows, (-1, np.prod(pooling.pool_size), x.shape[-1])), axis=1)
    return bool(np.any((windows[:, -1] - windows[:, -2] < LEAD) & (windows[:, -1] > 0)))


def give_weights(model, images, training, settled):
    """Random weights to one layer after the other, each told what those before it make of the images. `settled`: away
    from corners; and once more to the convolution before a pooling whose window has a close race, and to what lies
    between."""
    values = {model.layers[0].name: images}

    def give(layer):
        x = [values[source.name] for source in sources(layer)]
        begin(layer, x[0])
        if settled and (corners := CORNERS.get(function_of(layer))):
            (before,) = sources(layer)
            x = [settle(sources(before)[-1] if isinstance(before, layers.Add) else before, x[0], corners)]
        options = {"training": training} if isinstance(layer, layers.BatchNormalization) else {}
        values[layer.name] = np.asarray(layer(x if len(x) > 1 else x[0], **options))

    for layer in model.layers[1:]:
        give(layer)
        while (
            settled and isinstance(layer, layers.MaxPooling2D) and is_close_race(layer, values[sources(layer)[0].name])
        ):
            for again in reversed(since_convolution(layer)):
                give(again)


def since_convolution(layer):
    """The layer and those before it, up to the nearest convolution of each branch."""
    found, waiting = [], [layer]
    while waiting:
        found.append(waiting.pop(0))
        waiting += [] if isinstance(found[-1], layers.Conv2D) else sources(found[-1])
    return found


def arrays_of(model, kind):
    found = (layer for layer in model.layers if not isinstance(layer, layers.Normalization))
    return {f"{kind} {layer.name}/{w.name}": np.asarray(w) for layer in found for w in layer.weights}


def write(model, options, statistics, folder, trained):
    size, classes = options["size"], options["classes"]
    images = single(rng.uniform(-1, 1, (IMAGES, *model.input_shape[1:])))
    images[:, : size // 2] *= 0.3
    labels = rng.integers(0, classes, IMAGES)
    training = statistics == "batch"
    give_weights(model, images, training, trained)
    found = {"images": images, "labels": labels} | arrays_of(model, "weight")
    with tf.GradientTape() as tape:
        logits = model(images, training=training)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    variables = {f"{layer.name}/{v.name}": v for layer in model.layers for v in layer.trainable_variables}
    values = [v.value for v in variables.values()]
    gradients = tape.gradient(loss, values) if trained else map(np.zeros_like, values)
    found |= {"logits": np.asarray(logits), "loss": np.asarray(loss)}
    found |= {f"gradient {name}": np.asarray(g) for name, g in zip(variables, gradients, strict=True)}
    np.savez(f"{folder}/{statistics}.npz", **found, **arrays_of(model, "after"))


def shapes():
    model = keras.applications.VGG16(input_shape=(32, 32, 3), weights=None)
    return {f"{layer.name}/{w.name}": list(w.shape) for layer in model.layers for w in layer.weights}


if __name__ == "__main__":
    Path(sys.argv[2], "vgg16.json").write_text(json.dumps(shapes()))
    keras.backend.set_floatx("float64")
    for name, options in json.loads(sys.argv[1]).items():
        rng = np.random.default_rng(SEED)
        keras.utils.set_random_seed(SEED)
        (folder := Path(sys.argv[2]) / name).mkdir()
        model = MODELS[name](**options)
        first = model.get_weights()
        trained = name in sys.argv[3:]
        for statistics in ("moving", "batch") if trained else ("moving",):
            model.set_weights(first)
            write(model, options, statistics, folder, trained)

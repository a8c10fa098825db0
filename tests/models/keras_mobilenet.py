"""Run by test_mobilenet_v1_keras.py in a process of its own, where TensorFlow may be imported.

    python keras_mobilenet.py ALPHA SIZE CLASSES OUTPUT.npz

Builds keras.applications.MobileNet in float64 with random weights, and writes weights, images, labels, logits, and the
gradients of the mean cross-entropy for the first image and for all of them.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import tensorflow as tf

IMAGES = 8
MARGIN = 3e-5  # float32 must not round any input of a ReLU6 across one of its corners
rng = np.random.default_rng(3)


def single(array):
    """Rounded to float32: both sides start from the same numbers."""
    return np.asarray(array, np.float32).astype(np.float64)


def settle(layer, x):
    """Statistics as training could have left them: near the input's own. Then beta is moved by as little as it takes
    for every output to keep MARGIN from 0 and 6, where ReLU6's derivative jumps: a flipped derivative is no error of
    rounding size, but 1e-2 of a layer's gradient."""
    channels = x.shape[-1]
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    moving_mean = single(mean + 0.2 * np.sqrt(variance) * rng.standard_normal(channels))
    moving_variance = single(variance * rng.uniform(0.5, 2.0, channels) + 1e-3)
    gamma, beta = single(rng.uniform(0.7, 1.8, channels)), single(0.8 + 0.5 * rng.standard_normal(channels))
    scale = gamma / np.sqrt(moving_variance + layer.epsilon)
    for c in range(channels):
        values = (x[..., c].ravel() - moving_mean[c]) * scale[c]
        start = beta[c]
        while min(np.abs(values + beta[c] - corner).min() for corner in (0.0, 6.0)) < MARGIN:
            beta[c] = single(start + rng.uniform(-0.05, 0.05))
    layer.set_weights([gamma, beta, moving_mean, moving_variance])


def main(alpha, size, classes, path):
    keras.backend.set_floatx("float64")
    model = keras.applications.MobileNet(
        (size, size, 3), alpha=alpha, weights=None, classes=classes, classifier_activation=None
    )
    images = single(rng.uniform(-1, 1, (IMAGES, size, size, 3)))
    images[:, : size // 2] *= 0.3
    labels = rng.integers(0, classes, IMAGES)
    x = images
    for layer in model.layers[1:]:
        if isinstance(layer, keras.layers.BatchNormalization):
            settle(layer, np.asarray(x))
        elif layer.get_weights():
            layer.set_weights([single(w + 0.02 * rng.standard_normal(w.shape)) for w in layer.get_weights()])
        x = layer(x, training=False)
    found = {"images": images, "labels": labels, "logits": np.asarray(x)}
    for layer in model.layers:
        for weight in layer.weights:
            found[f"weight {layer.name}/{weight.name}"] = np.asarray(weight)
    for n in (1, IMAGES):
        with tf.GradientTape() as tape:
            logits = model(images[:n], training=False)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:n], logits))
        variables = {f"{layer.name}/{v.name}": v for layer in model.layers for v in layer.trainable_variables}
        gradients = tape.gradient(loss, [v.value for v in variables.values()])
        found[f"loss {n}"] = np.asarray(loss)
        found |= {f"gradient {n} {name}": np.asarray(g) for name, g in zip(variables, gradients, strict=True)}
    np.savez(path, **found)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

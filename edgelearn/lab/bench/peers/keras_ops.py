"""Ops by themselves as Keras's layers."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from edgelearn.lab.bench.ops import OpProblem, digest
from edgelearn.lab.bench.problem import EPSILON, MOVING_AVERAGE

Step = Callable[[], Callable[[], list[float]]]


def prepare(problem: OpProblem, trains: bool, jit: bool) -> Step:
    """The step of an op as a tf.function, compiled by XLA with `jit`."""
    if problem.spec.kind == "update":
        return _update(problem, jit)
    inputs, dy = tf.constant(problem.x), tf.constant(problem.dy)
    call, weights = _layer(problem, inputs)
    sources = weights if problem.spec.reads_pictures else [inputs, *weights]

    @tf.function(jit_compile=jit)
    def forward() -> tf.Tensor:
        return call(inputs)

    @tf.function(jit_compile=jit)
    def train() -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = call(inputs)
        return y, *tape.gradient(y, sources, None if problem.spec.kind == "loss" else dy)

    def step() -> Callable[[], list[float]]:
        results = train() if trains else (forward(),)
        return lambda: digest(*(tensor.numpy() for tensor in results))

    return step


def _layer(problem: OpProblem, inputs: tf.Tensor) -> tuple[Callable[[tf.Tensor], tf.Tensor], list[tf.Variable]]:
    spec = problem.spec
    if spec.kind == "loss":
        loss, labels = keras.losses.SparseCategoricalCrossentropy(from_logits=True), tf.constant(problem.labels)
        return lambda logits: loss(labels, logits), []
    window = {"kernel_size": spec.size, "strides": spec.stride, "padding": "same", "use_bias": False}
    layer = {
        "convolution": lambda: keras.layers.Conv2D(spec.filters, **window),
        "depthwise": lambda: keras.layers.DepthwiseConv2D(**window),
        "dense": lambda: keras.layers.Dense(spec.filters),
        "batchnorm": lambda: keras.layers.BatchNormalization(momentum=MOVING_AVERAGE, epsilon=EPSILON),
        "pool": lambda: keras.layers.GlobalAveragePooling2D(),
    }[spec.kind]()
    layer.build(inputs.shape)
    for variable, value in zip(layer.trainable_variables, problem.weights.values(), strict=True):
        variable.assign(value)
    options = {"training": True} if spec.kind == "batchnorm" else {}
    return lambda x: layer(x, **options), [variable.value for variable in layer.trainable_variables]


def _update(problem: OpProblem, jit: bool) -> Step:
    parameter, gradient = keras.Variable(problem.x), tf.constant(problem.dy)
    optimizer = keras.optimizers.SGD(problem.learning_rate)
    optimizer.build([parameter])

    @tf.function(jit_compile=jit)
    def update() -> None:
        optimizer.apply([gradient], [parameter])

    def step() -> Callable[[], list[float]]:
        update()
        return lambda: digest(parameter.numpy())

    return step
